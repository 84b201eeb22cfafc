"""Start mirrored TensorFlow workers by a shell script, by tflaunch, or by tflaunch with `preload`."""

import json
import os
import random
import shlex
import socket
import subprocess
import sys
import sysconfig
import threading
import time
import venv
from pathlib import Path
from typing import IO

import peers
from parts import last_line
from peers import TFLAUNCH
from process_tree import ProcessTree, Started, StuckError

SCRIPT = "a shell script, one `&` for each"
PRELOAD = "tflaunch up --preload"
WARM = "tflaunch up, warm"
WAYS = (SCRIPT, TFLAUNCH, PRELOAD)
BARE, TYPICAL = "bare", "typical"
ENVIRONMENTS = (BARE, TYPICAL)
PACKAGES = ("pandas", "pyarrow", "scikit-learn", "matplotlib")
"""What the typical environment has beside TensorFlow."""
VICTIM = 1  # not the leader, without which TensorFlow has no coordinator
LIMIT = 120.0
PROGRAM = """
import os
import time
import tensorflow as tf
strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    step = tf.Variable(0, dtype=tf.int64)
    weights = tf.Variable(tf.zeros((64, 1)))
batch = tf.random.stateless_normal((32, 64), (1, 2))
@tf.function
def gradient():
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((tf.matmul(batch, weights) - 1.0) ** 2)
    return tape.gradient(loss, weights)
@tf.function
def reduced_gradient():
    return strategy.reduce("MEAN", strategy.run(gradient), axis=None)
def train():
    weights.assign_sub(0.01 * reduced_gradient())
    step.assign_add(1)
    who = os.getpid(), strategy.cluster_resolver.task_id
    os.write(1, b"trained %d %d\\n" % who)  # in one piece: all have one pipe
"""
ONE_STEP = """
train()
time.sleep(600)
"""
MANY_STEPS = """
path = os.path.join("state", "chief" if strategy.extended.should_checkpoint else "other", "saved")
checkpoint = tf.train.Checkpoint(step=step, weights=weights)
if saved := tf.train.latest_checkpoint(os.path.join("state", "chief")):
    checkpoint.restore(saved)
while True:
    train()
    checkpoint.write(path) if step.numpy() % 10 else checkpoint.save(path)
    time.sleep({pause})
"""


class Workers:
    """Workers that were started together, and their steps as they are reported."""

    def __init__(
        self, tree: ProcessTree, directory: Path, way: str, count: int, what: str, environment: str = BARE
    ) -> None:
        """Start ``count`` workers of an environment in one way; ``what`` makes them do one step or many."""
        (directory / "train.py").write_text(PROGRAM + what)
        self.count = count
        self._errors = directory / "errors"
        self.started: Started = tree.start(
            _argv(directory, way, count, python_of(environment)), directory, None, self._errors
        )
        self.by_index: dict[int, int] = {}
        """The PID that did the last step, for each worker."""
        self._steps: dict[int, list[float]] = {}
        self._changed = threading.Condition()
        assert self.started.process.stdout is not None
        threading.Thread(target=self._read, args=(self.started.process.stdout,), daemon=True).start()

    def wait_for(self, *, steps: int = 1, workers: int | None = None, but: frozenset[int] = frozenset()) -> float:
        """Wait until workers (all) have each done ``steps`` steps, ignoring processes in ``but``; return when."""
        wanted = workers or self.count

        def done() -> list[float]:
            return sorted(
                times[steps - 1] for pid, times in self._steps.items() if pid not in but and len(times) >= steps
            )

        with self._changed:
            if not self._changed.wait_for(lambda: len(done()) >= wanted, LIMIT):
                raise StuckError(f"no step was done within {LIMIT:g} s: {last_line(self._errors)}")
            return done()[wanted - 1]

    def _read(self, output: IO[bytes]) -> None:
        for line in output:
            words = line.split()
            if b"trained" in words:
                pid, index = map(int, words[-2:])
                with self._changed:
                    self._steps.setdefault(pid, []).append(time.monotonic())
                    self.by_index[index] = pid
                    self._changed.notify_all()


def python_of(environment: str) -> str:
    """Return the interpreter of an environment; one with more packages than this one is made when it is missing."""
    if environment == BARE:
        return sys.executable
    place = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "tflaunch-benchmarks" / environment
    python, done = str(place / "bin/python"), place / "done"
    if not done.exists():
        venv.create(place, clear=True)
        packages = place / Path(sysconfig.get_path("purelib")).relative_to(sys.prefix)
        (packages / "base.pth").write_text(sysconfig.get_path("purelib"))
        subprocess.run([sys.executable, "-m", "pip", "--python", python, "install", "-q", *PACKAGES], check=True)
        done.touch()
    return python


def _argv(directory: Path, way: str, count: int, python: str) -> list[str]:
    if way == SCRIPT:
        (directory / "start.sh").write_text(_script(count, python))
        return ["sh", "start.sh"]
    spec = {
        "cluster": {"worker": count},
        "command": [python, "train.py"],
        "restart": {"backoff": [0, 0]},  # the restart loop does not wait either
    }
    (directory / "job.json").write_text(json.dumps(spec))
    options = {PRELOAD: ["--preload"], WARM: ["--set", "warm=10m"]}
    return [peers.tflaunch(), "up", *options.get(way, []), "job.json"]


def _script(count: int, python: str) -> str:
    cluster = {"worker": [f"127.0.0.1:{port}" for port in _free_ports(count)]}
    # The same share of the cores that tflaunch gives each worker.
    lines = [f"export TF_NUM_INTRAOP_THREADS={max(1, len(os.sched_getaffinity(0)) // count)}"]
    for index in range(count):
        config = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": index}})
        lines.append(f"TF_CONFIG={shlex.quote(config)} {shlex.quote(python)} train.py &")
    return "\n".join([*lines, "wait", ""])


def _free_ports(count: int) -> list[int]:
    """Return free ports, outside the kernel's range for connections, which could take one at any time."""
    found: set[int] = set()
    while len(found) < count:
        port = random.randrange(10_000, 32_000)
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        found.add(port)
    return sorted(found)
