"""Programs that hang, each in its own way: real trainings of TensorFlow on this machine.

A program prints "hangs" just before. The line that the verdict must name ends with ``# here``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

_HEAD = """
import os, signal, socket, subprocess, sys, threading, time
from pathlib import Path
import tensorflow as tf
task = os.environ["TFLAUNCH_TASK"]
is_culprit = task == sys.argv[1]
if task.startswith("evaluator"):
    time.sleep(10**6)
def say():
    print("hangs", flush=True)
"""
_LOOP = """
strategy = tf.distribute.MultiWorkerMirroredStrategy()
@tf.function
def total(number):
    return strategy.reduce("SUM", strategy.run(lambda: number), axis=None)
def fault(): pass
def train(steps=10**6):
    for step in range(steps):
        total(tf.constant(1.0))
        if step == 3:
            fault()
"""


class Hang(NamedTuple):
    """A program that hangs.

    ``culprits`` are the tasks that the verdict must name; the first is its argument. ``says``: what its sentence
    contains. ``cluster``: the tasks of the job.
    """

    program: str
    culprits: tuple[str, ...]
    says: str
    cluster: Mapping[str, int]

    @property
    def lines(self) -> list[int]:
        """The lines of which the verdict must name one; empty if the culprit is at none."""
        return [number for number, line in enumerate(self.program.splitlines(), 1) if line.endswith("# here")]


def _program(body: str, *culprits: str, says: str = "", **others: int) -> Hang:
    return Hang(f"{_HEAD}{body}", culprits or ("worker:1",), says, {"worker": 2, **others})


def _in_loop(fault: str, *culprits: str, says: str = "", **others: int) -> Hang:
    """Return a program whose culprit runs ``fault`` in a step of its loop."""
    body = "\n".join(f"        {line}" for line in fault.strip().splitlines())
    text = f"{_LOOP}\ndef fault():\n    if is_culprit:\n        say()\n{body}\ntrain()\n"
    return _program(text, *culprits, says=says, **others)


_FIT = """
strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(1)])
    model.compile("sgd", "mse")
def batches():
    for number in range(10**6):
        if number == 30 and is_culprit:
            fault()
        yield [[1.0] * 4] * 8, [[1.0]] * 8
data = tf.data.Dataset.from_generator(batches, output_signature=(tf.TensorSpec((8, 4)), tf.TensorSpec((8, 1))))
options = tf.data.Options()
options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
data = data.with_options(options)
"""

HANGS = {
    "sleep": _in_loop("time.sleep(3600)  # here", says="sleeps"),
    "lock": _in_loop("lock = threading.Lock()\nlock.acquire()\nlock.acquire()  # here", says="lock"),
    "stopped": _in_loop("os.kill(os.getpid(), signal.SIGSTOP)  # here", says="SIGSTOP"),
    "fifo": _in_loop("os.mkfifo('fifo')\nopen('fifo').read()  # here", says="pipe"),
    "pipe that is silent": _in_loop("ends = os.pipe()\nos.read(ends[0], 1)  # here", says="reads from a pipe"),
    "full pipe": _in_loop(
        "child = subprocess.Popen(['sleep', '3600'], stdin=subprocess.PIPE)\nchild.stdin.write(b'x' * 10**6)  # here",
        says="writes to a pipe",
    ),
    "subprocess": _in_loop("subprocess.run(['sleep', '3600'])  # here", says="process"),
    "silent service": _in_loop(
        "server = socket.create_server(('127.0.0.1', 0))\n"
        "socket.create_connection(server.getsockname()).recv(1)  # here",
        says="connection",
    ),
    "dead proxy": _in_loop(
        "server = socket.create_server(('127.0.0.1', 0), backlog=0)\n"
        "calls = [socket.create_connection(server.getsockname())]\n"
        "import urllib.request\n"
        "os.environ['http_proxy'] = 'http://%s:%d' % server.getsockname()\n"
        "urllib.request.urlopen('http://data.example/mnist').read()  # here",
    ),
    "breakpoint": _in_loop(
        "import pdb\nends = os.pipe()\nsys.stdin = os.fdopen(ends[0])\nbreakpoint()\ntime.time()  # here",
        says="debugger",
    ),
    "endless loop": _in_loop("while True: pass  # here", says="works"),
    "barrier": _in_loop("while not Path('never').exists(): time.sleep(0.1)  # here", "worker:0", says="runs from"),
    "rank-dependent collective": _program(
        f"{_LOOP}\n"
        "def fault():\n    if is_culprit:\n        say()\n"
        "        tf.raw_ops.CollectiveGatherV2(input=[1.0], group_size=2, group_key=7, instance_key=1, "
        "ordering_token=[])  # here\ntrain()\n",
        says="waits in TensorFlow",
    ),
    "thread barrier": _in_loop("threading.Barrier(2).wait()  # here", "worker:0", says="another thread"),
    "uneven data": _program(
        f"{_LOOP}\ntrain(3 if is_culprit else 10**6)\nif is_culprit:\n    say()\n",
        says="has ended with exit code 0",
    ),
    "input": _program(
        f"def fault():\n    say()\n    time.sleep(3600)  # here\n{_FIT}\n"
        "model.fit(data, steps_per_epoch=10**6, verbose=0)\n",
        says="has read no batch",
    ),
    "callback": _program(
        f"{_FIT}\nclass Saves(tf.keras.callbacks.Callback):\n"
        "    def on_train_batch_end(self, batch, logs=None):\n        if batch == 20 and is_culprit:\n"
        "            say()\n            time.sleep(3600)  # here\n"
        "model.fit(data, steps_per_epoch=10**6, verbose=0, callbacks=[Saves()])\n",
    ),
    "never listens": _program(
        "if is_culprit:\n    say()\n    time.sleep(3600)  # here\ntf.distribute.MultiWorkerMirroredStrategy()\n",
        says="does not listen on its port",
    ),
    "no TF_CONFIG": _program(
        "if is_culprit:\n    say()\n    del os.environ['TF_CONFIG']\n    Path(os.environ['TFLAUNCH_PROGRESS'])"
        ".write_text('{\"step\": 5}\\n')\n"
        "strategy = tf.distribute.MultiWorkerMirroredStrategy()\n"
        "while True:\n    time.sleep(0.01)\n",
        says="does not listen on its port",
    ),
    "wrong port": _program(
        "import json\nif is_culprit:\n    say()\n    known = json.loads(os.environ['TF_CONFIG'])\n"
        "    held = socket.create_server(('127.0.0.1', 0))\n    time.sleep(3600)  # here\n"
        "tf.distribute.MultiWorkerMirroredStrategy()\n",
        says="but at",
    ),
    "evaluator": _in_loop("time.sleep(3600)  # here", says="; worker:0 waits for it", evaluator=1),
}
"""The name of a hang: its program."""

HEALTHY = _program(
    f"{_LOOP}\ndef fault(): say()\ntrain(5)\nwhile True:\n    train(1)\n    time.sleep(is_culprit * 2)\n"
)
"""A slow program that goes on."""
