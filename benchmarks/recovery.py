"""How long it takes until training goes on after one of two mirrored workers was killed.

The same program is run under `tflaunch up`, and by a plain restart loop as a process manager does it: whoever
has died is waited for, then all are started again. There the survivor ends when TensorFlow itself notices.
Both are measured in turn, so that a busy moment of the machine meets both alike.

TensorFlow notices in the collective that waits for the dead peer, so the kill meets the workers once in their
steps, which follow each other without a pause, and once while they do something else for a second.
"""

import argparse
import json
import os
import platform
import select
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

PAUSES = {"in a step": "0", "between two steps": "1"}
"""What the kill meets: seconds that a worker does something else after each step."""
LIMIT = 120.0
VICTIM = 1  # not the leader, without which TensorFlow has no coordinator
HEADING = "| restarted by | kill to | median s | min s | max s | ratio to the loop |"
RULE = "|---|---|---:|---:|---:|---:|"
PROGRAM = """
import os
import time
import tensorflow as tf
strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    step = tf.Variable(0, dtype=tf.int64)
    weights = tf.Variable(tf.zeros((64, 1)))
path = os.path.join(os.environ["STATE"], "chief" if strategy.extended.should_checkpoint else "other", "saved")
checkpoint = tf.train.Checkpoint(step=step, weights=weights)
if saved := tf.train.latest_checkpoint(os.path.join(os.environ["STATE"], "chief")):
    checkpoint.restore(saved)
batch = tf.random.stateless_normal((32, 64), (1, 2))
@tf.function
def gradient():
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((tf.matmul(batch, weights) - 1.0) ** 2)
    return tape.gradient(loss, weights)
@tf.function
def train():
    return strategy.reduce("MEAN", strategy.run(gradient), axis=None)
while True:
    weights.assign_sub(0.01 * train())
    step.assign_add(1)
    checkpoint.write(path) if step.numpy() % 10 else checkpoint.save(path)
    print("step", step.numpy(), flush=True)
    time.sleep(float(os.environ["PAUSE"]))
"""


class Recovery(NamedTuple):
    """Seconds since the kill."""

    gone: float
    started: float
    stepped: float


WORDS = {
    "gone": "last old process gone",
    "started": "all new processes started",
    "stepped": "first new step",
}


class Output:
    """Reads a command's lines as they come; they say when steps were done."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._steps: list[float] = []
        self._changed = threading.Condition()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if "step " in line:
                with self._changed:
                    self._steps.append(time.monotonic())
                    self._changed.notify_all()

    def step_after(self, when: float) -> float:
        """Wait for a step that was done after this time; return when."""
        with self._changed:
            if not self._changed.wait_for(lambda: bool(self._steps) and self._steps[-1] > when, LIMIT):
                raise SystemExit("no step was done: is TensorFlow installed?")
            return next(step for step in self._steps if step > when)


class Under:
    """A round under `tflaunch up`."""

    def __init__(self, directory: Path, environ: dict[str, str]) -> None:
        self._home = directory / "home"
        spec = {
            "cluster": {"worker": 2},
            "command": [sys.executable, "-c", PROGRAM],
            "restart": {"backoff": [0, 0]},  # the loop beside it does not wait either
            "env": {name: environ[name] for name in ("STATE", "PAUSE", "TF_CPP_MIN_LOG_LEVEL")},
        }
        (directory / "job.json").write_text(json.dumps(spec))
        tflaunch = Path(sys.executable).with_name("tflaunch")
        program = str(tflaunch) if tflaunch.exists() else (shutil.which("tflaunch") or "tflaunch")
        self._process = _popen(
            [program, "up", str(directory / "job.json")], environ | {"TFLAUNCH_HOME": str(self._home)}
        )
        self.outputs = [Output(self._process)]

    def pids(self, attempt: int = 0) -> list[int]:
        """Wait until an attempt has started; return its processes, by rank."""
        started = _wait_for(lambda: self._started(attempt))
        return [started[task] for task in sorted(started)]

    def _started(self, attempt: int) -> dict[str, int]:
        found = {}
        for journal in self._home.glob("runs/*/events.jsonl"):
            for line in journal.read_text().splitlines():
                if '"task_started"' in line and (record := json.loads(line))["attempt"] == attempt:
                    found[record["task"]] = record["pid"]
        return found if len(found) == 2 else {}

    def restart(self) -> float:
        """Return when the next attempt had started: nobody has to ask for it."""
        self.pids(attempt=1)
        return time.monotonic()

    def end(self) -> None:
        """End the job."""
        for _ in range(2):
            self._process.send_signal(signal.SIGINT)
        self._process.wait(LIMIT)


class Looped:
    """A round under a loop that waits for all and starts all again."""

    def __init__(self, directory: Path, environ: dict[str, str]) -> None:
        self._environ = environ
        self._processes: list[subprocess.Popen[str]] = []
        self.outputs: list[Output] = []
        self._start()

    def _start(self) -> None:
        cluster = {"worker": [f"127.0.0.1:{port}" for port in _free_ports(2)]}
        for index in range(2):
            config = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": index}})
            own = {"TF_CONFIG": config, "TF_NUM_INTRAOP_THREADS": _thread_share()}
            self._processes.append(_popen([sys.executable, "-c", PROGRAM], self._environ | own))
        self.outputs = [Output(process) for process in self._processes[-2:]]

    def pids(self) -> list[int]:
        """Return the processes, by rank."""
        return [process.pid for process in self._processes]

    def restart(self) -> float:
        """Start all again, as soon as all have ended."""
        for process in self._processes:
            process.wait(LIMIT)
        self._start()
        return time.monotonic()

    def end(self) -> None:
        """Kill what lives."""
        for process in self._processes:
            process.kill()
            process.wait()


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5, metavar="N", help="default: 5")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep all raw figures")
    arguments = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM):
        # By way of an exception, so that what is under way is ended too.
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    load = ", ".join(f"{average:.2f}" for average in os.getloadavg())
    cores, python = len(os.sched_getaffinity(0)), platform.python_version()
    print(f"{cores} cores, Python {python}, {platform.system()} {platform.release()}, load {load} at the start.\n")
    raw = {}
    for state, pause in PAUSES.items():
        found = _measure(arguments.repeats, state, pause)
        print("\n".join([f"killed {state}", "", HEADING, RULE, *_lines(found), ""]), flush=True)
        raw[state] = {name: [recovery._asdict() for recovery in rounds] for name, rounds in found.items()}
    if arguments.json:
        arguments.json.write_text(json.dumps(raw, indent=1) + "\n")


def _measure(repeats: int, state: str, pause: str) -> dict[str, list[Recovery]]:
    found: dict[str, list[Recovery]] = {"tflaunch": [], "loop": []}
    for turn in range(repeats):
        print(f"{state}, round {turn + 1} of {repeats}", file=sys.stderr)
        pairs: list[tuple[str, type[Under | Looped]]] = [("tflaunch", Under), ("loop", Looped)]
        for name, kind in pairs if turn % 2 == 0 else pairs[::-1]:
            found[name].append(_round(kind, pause))
    return found


def _round(kind: type[Under] | type[Looped], pause: str) -> Recovery:
    with tempfile.TemporaryDirectory(prefix="recovery-", ignore_cleanup_errors=True) as scratch:
        directory = Path(scratch)
        state = {"STATE": str(directory / "state"), "PAUSE": pause}
        environ = {**os.environ, **state, "TF_CPP_MIN_LOG_LEVEL": "2", "PYTHONUNBUFFERED": "1"}
        running = kind(directory, environ)
        try:
            for output in running.outputs:
                output.step_after(output.step_after(0.0))
            return _recovery(running)
        finally:
            running.end()


def _recovery(running: Under | Looped) -> Recovery:
    pids = running.pids()
    pidfds = [os.pidfd_open(pid) for pid in pids]
    begun = time.monotonic()
    signal.pidfd_send_signal(pidfds[VICTIM], signal.SIGKILL)
    # tflaunch restarts while this waits; the loop is part of this process, and comes after.
    for pidfd in pidfds:
        if not select.select([pidfd], [], [], LIMIT)[0]:
            raise SystemExit(f"a worker did not end within {LIMIT:g} s")
        os.close(pidfd)
    gone = time.monotonic()
    started = running.restart()
    # What old processes had said may be read late, but not after new ones, which import TensorFlow first.
    stepped = running.outputs[-1].step_after(max(started, gone))
    return Recovery(gone - begun, started - begun, stepped - begun)


def _popen(command: list[str], environ: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )


def _wait_for(look: Callable[[], dict[str, int]]) -> dict[str, int]:
    end = time.monotonic() + LIMIT
    while not (found := look()):
        if time.monotonic() > end:
            raise SystemExit("it did not start")
        time.sleep(0.002)
    return found


def _free_ports(count: int) -> list[int]:
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


def _thread_share() -> str:
    """The same share of the cores that tflaunch gives each of two tasks."""
    return str(max(1, len(os.sched_getaffinity(0)) // 2))


def _lines(found: dict[str, list[Recovery]]) -> list[str]:
    lines = []
    for name, rounds in found.items():
        for what, words in WORDS.items():
            seconds = [getattr(recovery, what) for recovery in rounds]
            base = [getattr(recovery, what) for recovery in found["loop"]]
            # A ratio within one round: what disturbed the machine then disturbed both.
            ratio = statistics.median(mine / other for mine, other in zip(seconds, base, strict=True))
            figures = [f"{value:.3f}" for value in (statistics.median(seconds), min(seconds), max(seconds))]
            lines.append(f"| {' | '.join([name, words, *figures, f'{ratio:.3f}'])} |")
    return lines


if __name__ == "__main__":
    main()
