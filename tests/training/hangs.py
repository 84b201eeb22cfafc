"""Programs that hang, each in its own way: real trainings of TensorFlow on this machine.

A program prints "hangs" just before. The line that the verdict must name ends with ``# here``.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

_HEAD = """
import os, signal, socket, subprocess, sys, threading, time
from pathlib import Path
import tensorflow as tf
task, is_first = os.environ["TFLAUNCH_TASK"], os.environ["TFLAUNCH_ATTEMPT"] == "0"
is_culprit = is_first and task == sys.argv[1]
STEPS = 10**6 if is_first else 10
if task.startswith("evaluator"):
    sys.exit(is_first and next(tf.train.checkpoints_iterator("checkpoints")))
def say():
    print("hangs", flush=True)
"""
_PATIENT = """
from tensorflow.python.distribute.collective_all_reduce_strategy import CollectiveAllReduceExtended
from tensorflow.python.eager.context import Context
CollectiveAllReduceExtended._enable_check_health = False
configure = Context.configure_coordination_service
def configure_patiently(*given, **named):
    return configure(*given, **{**named, "heartbeat_timeout_in_ms": 600_000})
Context.configure_coordination_service = configure_patiently
"""
"""Keeps TensorFlow from failing 11 s after a peer's end, in which a busy machine may not have asked for the verdict."""
_LOOP = """
strategy = tf.distribute.MultiWorkerMirroredStrategy()
@tf.function
def total(number):
    return strategy.reduce("SUM", strategy.run(lambda: number), axis=None)
def fault(): pass
def train(steps=STEPS):
    for step in range(steps):
        total(tf.constant(1.0))
        if step == 3:
            fault()
"""


class Hang(NamedTuple):
    """A program that hangs.

    ``culprits`` are the tasks that the verdict must name; the first is its argument, and says that it hangs. ``says``:
    what its sentence contains. ``cluster``: the tasks of the job; ``fields`` are further ones of its spec.
    """

    program: str
    culprits: tuple[str, ...]
    says: str
    cluster: Mapping[str, int]
    fields: Mapping[str, Any] = MappingProxyType({})
    has_own_network: bool = False
    needs: tuple[str, ...] = ()

    @property
    def lines(self) -> list[int]:
        """The verdict must name one of these lines; empty if the culprit is at none."""
        return [number for number, line in enumerate(self.program.splitlines(), 1) if line.endswith("# here")]


def _program(body: str, *culprits: str, says: str = "", **others: int) -> Hang:
    return Hang(f"{_HEAD}{body}", culprits or ("worker:1",), says, {"worker": 2, **others})


def _in_loop(fault: str, *culprits: str, says: str = "", evaluator: int = 0) -> Hang:
    """Return a program whose culprit runs ``fault`` in a step of its loop."""
    body = "\n".join(f"        {line}" for line in fault.strip().splitlines())
    text = f"{_LOOP}\ndef fault():\n    if is_culprit:\n        say()\n{body}\ntrain()\n"
    cluster = {"worker": 2, **({"evaluator": evaluator} if evaluator else {})}
    return Hang(f"{_HEAD}{text}", culprits or ("worker:1",), says, cluster)


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

_SERVE = (
    "tf.distribute.Server(resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id).join()"
)
_COORDINATE = """\
strategy = tf.distribute.ParameterServerStrategy(resolver)
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
with strategy.scope():
    total = tf.Variable(0.0)
@tf.function
def step():
    return strategy.run(lambda: total.assign_add(1.0))
"""


def _coordinated(operation: str, says: str) -> Hang:
    """Return a program of a chief whose only worker, a server, does not come to the end of an operation."""
    body = f"""
resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
if is_culprit:
    os.mkfifo("fifo")
    say()
if resolver.task_type in ("worker", "ps"):
    {_SERVE}
{_COORDINATE}
@tf.function
def read():
    return {operation}
while not Path("fifo").exists():
    time.sleep(0.1)
coordinator.schedule(step)
if is_first:
    coordinator.schedule(read)
coordinator.join()
"""
    return Hang(f"{_HEAD}{body}", ("worker:0",), says, {"chief": 1, "worker": 1, "ps": 1})


HANGS = {
    "sleep": _in_loop("time.sleep(3600)  # here", says="sleeps"),
    "lock": _in_loop("lock = threading.Lock()\nlock.acquire()\nlock.acquire()  # here", says="lock"),
    "stopped": _in_loop("os.kill(os.getpid(), signal.SIGSTOP)  # here", says="SIGSTOP"),
    "file that never comes": _in_loop("while not Path('never').exists():\n    time.sleep(1)  # here"),
    "lock of a forked pool": _in_loop(
        "import multiprocessing\nlock = threading.Lock()\nlock.acquire()\n"
        "multiprocessing.get_context('fork').Pool(1, lock.acquire).map(int, [1])  # here"
    ),
    "lock of an import": _in_loop(
        "Path('slow.py').write_text('import time; time.sleep(3600)')\nsys.path.insert(0, os.getcwd())\n"
        "threading.Thread(target=__import__, args=['slow'], daemon=True).start()\ntime.sleep(1)\nimport slow  # here"
    ),
    "handler of a signal": _in_loop(
        "signal.signal(signal.SIGUSR1, lambda *_: time.sleep(3600))  # here\n"
        "os.kill(os.getpid(), signal.SIGUSR1)\ntime.time()",
        says="sleeps",
    ),
    "queue": _in_loop("import queue\nqueue.Queue().get()  # here", says="lock or another thread"),
    "full pipe of a command": _in_loop(
        "subprocess.Popen(['cat', '/dev/zero'], stdout=subprocess.PIPE).wait()  # here", says="process"
    ),
    "save into a pipe": _in_loop("os.mkfifo('model')\nPath('model').write_text('x')  # here", says="pipe"),
    "barrier of threads": _in_loop("threading.Barrier(2).wait()  # here", says="lock or another thread"),
    "dead file system": _in_loop(
        """\
import ctypes, struct
libc, device = ctypes.CDLL(None), os.open("/dev/fuse", os.O_RDWR)
assert not libc.unshare(0x20000) and not libc.mount(None, b"/", None, 0x44000, None)  # nobody else sees it
os.mkdir("mount")
options = f"fd={device},rootmode=40000,user_id=0,group_id=0"
assert not libc.mount(b"fuse", b"mount", b"fuse", 0, options.encode())
answer = struct.pack("<Ii8sIIIIHHI40x", 80, 0, os.read(device, 1 << 16)[8:16], 7, 23, 4096, 0, 12, 9, 4096)
os.write(device, answer)
tf.train.Checkpoint(step=tf.Variable(1)).write("mount/model")  # here""",
        says="file system",
    ),
    "cut link": _program(
        f"{_PATIENT}subprocess.run(['ip', 'link', 'set', 'lo', 'up'])\n{_LOOP}\ndef fault():\n    if is_culprit:\n"
        "        subprocess.run(['ip', 'link', 'set', 'lo', 'down'])\n        say()\ntrain()\n",
        "worker:0",
        says="is not answered",
    )._replace(has_own_network=True),
    "subprocess": _in_loop("subprocess.run(['sleep', '3600'])  # here", says="process"),
    "silent service": _in_loop(
        "server = socket.create_server(('127.0.0.1', 0))\n"
        "socket.create_connection(server.getsockname()).recv(1)  # here",
        says="connection",
    ),
    "web server that never answers": _in_loop(
        "import urllib.request\nserver = socket.create_server(('127.0.0.1', 0))\n"
        "urllib.request.urlopen('http://127.0.0.1:%d/' % server.getsockname()[1])  # here",
        says="connection",
    ),
    "breakpoint": _in_loop(
        "import pdb\nends = os.pipe()\nsys.stdin = os.fdopen(ends[0])\nbreakpoint()\ntime.time()  # here",
        says="debugger",
    ),
    "endless loop": _in_loop("while True: pass  # here", says="works"),
    "uneven data": _program(
        f"{_PATIENT}{_LOOP}\ntrain(3 if is_culprit else STEPS)\nif is_culprit:\n    say()\n",
        says="has ended with exit code 0",
    ),
    "input": _program(
        f"def fault():\n    say()\n    time.sleep(3600)  # here\n{_FIT}\n"
        "model.fit(data, steps_per_epoch=STEPS, verbose=0)\n",
        says="has read no batch",
    ),
    "never listens": _program(
        "if is_culprit:\n    say()\n    time.sleep(3600)  # here\ntf.distribute.MultiWorkerMirroredStrategy()\n",
        says="does not listen on its port",
    ),
    "evaluator": _in_loop("time.sleep(3600)  # here", says="; worker:0 waits for it", evaluator=1),
    "evaluator without a checkpoint": _in_loop(
        "while not Path('score').exists():\n    time.sleep(1)  # here", says="; worker:0 waits for it", evaluator=1
    ),
    "locked file": _in_loop(
        "import fcntl\nfiles = [open('lock', 'w') for _ in range(2)]\n"
        "for file in files:\n    fcntl.flock(file, fcntl.LOCK_EX)  # here",
        says="/lock, which python",
    ),
    "thread at the exit": _program(
        f"def wait():\n    time.sleep(3600)  # here\n{_LOOP}\n"
        "train(3 if is_culprit else STEPS)\nif is_culprit:\n    say()\n    threading.Thread(target=wait).start()\n",
        says="has ended but for a thread (wait), which sleeps",
    ),
    "data service": Hang(
        f"""{_HEAD}
service = tf.data.experimental.service
if is_culprit:
    dispatcher = service.DispatchServer()
    worker = service.WorkerServer(service.WorkerConfig(dispatcher_address=dispatcher.target.partition("://")[2]))
    Path("new").write_text(dispatcher.target)
    Path("new").rename("target")
    while len(list(Path().glob("begun-*"))) < 2:
        time.sleep(0.1)
    say()
    os.kill(os.getpid(), signal.SIGSTOP)
while not Path("target").exists():
    time.sleep(0.1)
data = tf.data.Dataset.range(10**9).apply(service.distribute("parallel_epochs", Path("target").read_text()))
for step, number in enumerate(data):
    if step == 100:
        Path("begun-" + task).write_text("")
""",
        ("data",),
        "is stopped (SIGSTOP)",
        {"worker": 2},
        {"sidecars": {"data": {"command": ["python", "hang.py", "data"]}}},
    ),
    "stopped parameter server": Hang(
        f"""{_HEAD}
resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
def stop():
    while not Path("trains").exists():
        time.sleep(0.1)
    say()
    os.kill(os.getpid(), signal.SIGSTOP)
if is_culprit:
    threading.Thread(target=stop, daemon=True).start()
if resolver.task_type in ("worker", "ps"):
    {_SERVE}
{_COORDINATE}
while True:
    for _ in range(5):
        coordinator.schedule(step)
    coordinator.join()
    Path("trains").touch()
""",
        ("ps:0",),
        "is stopped (SIGSTOP)",
        {"chief": 1, "worker": 2, "ps": 1},
    ),
    "servers that run the chief's program": Hang(
        f"{_HEAD}\nresolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()\nsay()\n"
        + f"if not is_first and resolver.task_type != 'chief':\n    {_SERVE}\n"
        + _COORDINATE.replace("(resolver)", "(resolver)  # here"),
        ("worker:0", "worker:1", "ps:0"),
        "never started a server",
        {"chief": 1, "worker": 2, "ps": 1},
    ),
    "file of a server": _coordinated(
        "tf.io.read_file('fifo')", says="has a thread in TensorFlow that opens a named pipe that has no other end"
    ),
    "closure without an end": _coordinated(
        "tf.while_loop(lambda x: x > 0.0, lambda x: x * 1.0, [tf.constant(1.0)])", says="; chief:0 waits for it"
    ),
    "file of a dataset": _program(
        f"{_LOOP}\ndef fault():\n    if is_culprit:\n        os.mkfifo('fifo')\n        say()\n"
        "        next(iter(tf.data.TextLineDataset('fifo').prefetch(2)))  # here\ntrain()\n",
        says="opens a named pipe that has no other end",
    ),
    "alone in a collective": _program(
        f"{_LOOP}\ndef fault():\n    if is_culprit:\n        say()\n        total(tf.constant(1.0))  # here\n"
        "    Path('barrier-' + task).touch()\n"
        "    while len(list(Path().glob('barrier-*'))) < 3: time.sleep(0.1)\ntrain()\n",
        "worker:0",
        says="waits in TensorFlow",
        worker=3,
    ),
}
"""The name of a hang: its program."""

GOING_ON = {
    "uneven workers": _program(
        f"{_LOOP}\ndef fault(): say()\ntrain(5)\nwhile True:\n    train(1)\n    time.sleep(is_culprit * 2)\n"
    ),
    "slow input": _program(
        "def fault(): pass\n"
        + _FIT.replace("        yield", "        time.sleep(1.5)\n        yield")
        + "say()\nmodel.fit(data, steps_per_epoch=20, epochs=10**6, verbose=2 if task == 'worker:0' else 0)\n"
    ),
    "tracing": _program(
        f"{_LOOP}\ndef fault(): say()\ntrain(5)\nwhile True:\n"
        "    @tf.function\n    def long(x):\n"
        "        for _ in range(3000):\n            x = tf.sin(x) + 1.0\n        return x\n"
        "    long(tf.constant(1.0))\n    train(3)\n"
    ),
    "checkpoints": _program(
        f"{_LOOP}\ndef fault(): say()\nbig = tf.Variable(tf.zeros([20_000_000]))\n"
        "saver = tf.train.CheckpointManager(tf.train.Checkpoint(big=big), task.replace(':', '-'), 1)\n"
        "train(5)\nwhile True:\n    train(20)\n    print('saves', flush=True)\n    if task == 'worker:0':\n"
        "        saver.save()\n        time.sleep(4)\n"
    ),
    "parameter servers": Hang(
        f"""{_HEAD}
resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
if resolver.task_type in ("worker", "ps"):
    {_SERVE}
{_COORDINATE}
say()
while True:
    for _ in range(5):
        coordinator.schedule(step)
    coordinator.join()
    time.sleep(2)
""",
        ("chief:0",),
        "",
        {"chief": 1, "worker": 2, "ps": 1},
    ),
}
"""The name of a slow program that goes on, or does not train: its program."""
