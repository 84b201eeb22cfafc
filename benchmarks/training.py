"""Start the tasks of a TensorFlow training by a shell script, by other launchers, or by tflaunch."""

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
from collections.abc import Mapping
from pathlib import Path
from typing import IO

import peers
from parts import last_line
from peers import HONCHO, TFLAUNCH, TORCHRUN
from process_tree import ProcessTree, Started, StuckError

SCRIPT = "a shell script, one `&` for each"
NO_PRELOAD = "tflaunch up --no-preload"
WARM = "tflaunch up, warm"
WAYS = (SCRIPT, HONCHO, TORCHRUN, NO_PRELOAD, TFLAUNCH)
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
COORDINATED = """
import os
import time
import tensorflow as tf
resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
if resolver.task_type != "chief":
    protocol, task = resolver.rpc_layer or "grpc", (resolver.task_type, resolver.task_id)
    server = tf.distribute.Server(resolver.cluster_spec(), job_name=task[0], task_index=task[1], protocol=protocol)
    server.join()
strategy = tf.distribute.ParameterServerStrategy(resolver)
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
with strategy.scope():
    weights = tf.Variable(tf.zeros((64, 1)))
@tf.function
def step():
    batch = tf.random.stateless_normal((32, 64), (1, 2))
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((tf.matmul(batch, weights) - 1.0) ** 2)
    weights.assign_sub(0.01 * tape.gradient(loss, weights))
for worker in resolver.cluster_spec().job_tasks("worker"):
    coordinator.schedule(step)
coordinator.join()
os.write(1, b"trained %d 0\\n" % os.getpid())
time.sleep(600)
"""
"""A chief that trains with workers and parameter servers; only the chief reports its step."""
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
        self,
        tree: ProcessTree,
        directory: Path,
        way: str,
        cluster: int | Mapping[str, int],
        what: str,
        environment: str = BARE,
        launchers: Path = Path(),
    ) -> None:
        """Start the tasks of an environment in one way.

        Args:
            tree: What the processes become part of.
            directory: Where the program and its files are.
            way: One of `WAYS`, or `WARM`.
            cluster: The number of mirrored workers, or of the tasks of each role.
            what: What each task does: the rest of `PROGRAM`, or `COORDINATED`.
            environment: One of `ENVIRONMENTS`.
            launchers: The virtual environment of the other launchers.
        """
        whole = what if what == COORDINATED else PROGRAM + what
        (directory / "train.py").write_text(whole)
        roles = {"worker": cluster} if isinstance(cluster, int) else cluster
        self.count = 1 if what == COORDINATED else sum(roles.values())
        """How many of them report steps."""
        self._errors = directory / "errors"
        argv = _argv(directory, way, roles, python_of(environment), launchers)
        self.started: Started = tree.start(argv, directory, None, self._errors)
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


def _argv(directory: Path, way: str, roles: Mapping[str, int], python: str, launchers: Path) -> list[str]:
    if way in {TFLAUNCH, NO_PRELOAD, WARM}:
        spec = {
            "cluster": roles,
            "command": [python, "train.py"],
            "restart": {"backoff": [0, 0]},  # the restart loop does not wait either
        }
        (directory / "job.json").write_text(json.dumps(spec))
        options = {NO_PRELOAD: ["--no-preload"], WARM: ["--set", "warm=10m"]}
        return [peers.tflaunch(), "up", *options.get(way, []), "job.json"]
    commands = _commands(roles, python)
    # The same share of the cores that tflaunch gives each task.
    threads = f"export TF_NUM_INTRAOP_THREADS={max(1, len(os.sched_getaffinity(0)) // len(commands))}"
    if way == HONCHO:
        tasks = (f"task{i}: {threads}; {command}\n" for i, command in enumerate(commands))
        (directory / "Procfile").write_text("".join(tasks))
        return [peers.find("honcho", launchers), "-e", os.devnull, "start"]
    if way == TORCHRUN:
        cases = (f"{rank}) {command};;" for rank, command in enumerate(commands))
        (directory / "task.sh").write_text("\n".join([threads, "case $RANK in", *cases, "esac", ""]))
        return peers.torchrun(peers.find("torchrun", launchers), len(commands), ("sh", "task.sh"))
    (directory / "start.sh").write_text("\n".join([threads, *(f"{command} &" for command in commands), "wait", ""]))
    return ["sh", "start.sh"]


def _commands(roles: Mapping[str, int], python: str) -> list[str]:
    """Return the shell command of each task, with the TF_CONFIG that its user would write."""
    ports = iter(_free_ports(sum(roles.values())))
    cluster = {role: [f"127.0.0.1:{next(ports)}" for _ in range(count)] for role, count in roles.items()}
    commands = []
    for role, addresses in cluster.items():
        for index in range(len(addresses)):
            config = json.dumps({"cluster": cluster, "task": {"type": role, "index": index}})
            commands.append(f"TF_CONFIG={shlex.quote(config)} {shlex.quote(python)} train.py")
    return commands


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
