"""What `preload` saves: the time and CPU until four mirrored workers have trained a step, and until they do again.

The same program is started by a shell script as people write it, by `tflaunch up`, and by `tflaunch up --preload`; they
take turns, so that a busy moment of the machine meets all alike. Under tflaunch one worker is then killed.
"""

import argparse
import json
import os
import platform
import shlex
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

LIMIT = 180.0
PROGRAM = """
import os
import time
import tensorflow as tf
strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    weights = tf.Variable(tf.zeros((64, 1)))
batch = tf.random.stateless_normal((32, 64), (1, 2))
@tf.function
def gradient():
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((tf.matmul(batch, weights) - 1.0) ** 2)
    return tape.gradient(loss, weights)
@tf.function
def train():
    return strategy.reduce("MEAN", strategy.run(gradient), axis=None)
weights.assign_sub(0.01 * train())
os.write(1, f"trained {os.environ.get('TFLAUNCH_ATTEMPT', '0')}\\n".encode())  # in one piece: all have one pipe
time.sleep(600)
"""
MARK = "PRELOAD_BENCHMARK"
HEADING = "| started by | what | median s | min s | max s | ratio | CPU s | ratio |"
RULE = "|---|---|---:|---:|---:|---:|---:|---:|"


class Figure(NamedTuple):
    """Seconds, and seconds of CPU of all processes together."""

    seconds: float
    cpu: float


class Round:
    """One start of all workers, and its end."""

    def __init__(self, name: str, directory: Path, workers: int) -> None:
        self._workers = workers
        self._home = directory / "home"
        self._mark = str(directory)
        (directory / "train.py").write_text(PROGRAM)
        own = {MARK: self._mark, "TFLAUNCH_HOME": str(self._home), "TF_CPP_MIN_LOG_LEVEL": "2", "PYTHONUNBUFFERED": "1"}
        self._begun = time.monotonic()
        self._process = subprocess.Popen(
            _script(directory, workers) if name == "script" else _tflaunch(directory, workers, name == "preload"),
            env={**os.environ, **own},
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )

    def first_step(self) -> Figure:
        """Wait until every worker has trained."""
        self._wait_for("trained 0")
        return Figure(time.monotonic() - self._begun, self._cpu())

    def recovery(self) -> Figure:
        """Kill a worker and wait until every worker of the next attempt has trained."""
        before, begun = self._cpu(), time.monotonic()
        (journal,) = self._home.glob("runs/*/events.jsonl")
        records = [json.loads(line) for line in journal.read_text().splitlines()]
        (pid,) = [r["pid"] for r in records if r["kind"] == "task_started" and r["task"] == "worker:1"]
        os.kill(pid, signal.SIGKILL)
        self._wait_for("trained 1")
        return Figure(time.monotonic() - begun, self._cpu() - before)  # the agent has buried the others, and has theirs

    def end(self) -> None:
        """End everything."""
        for pid in self._pids():
            os.kill(pid, signal.SIGKILL)
        self._process.wait(LIMIT)
        while self._pids():
            time.sleep(0.05)

    def _wait_for(self, words: str) -> None:
        assert self._process.stdout is not None
        count = 0
        while count < self._workers:
            line = self._process.stdout.readline()
            if not line:
                raise SystemExit("it ended too early: is TensorFlow installed?")
            count += words in line

    def _pids(self) -> list[int]:
        entry = f"{MARK}={self._mark}".encode()
        return [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if entry in _environ(pid)]

    def _cpu(self) -> float:
        return sum(map(_cpu_of, self._pids()))


def _environ(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def _cpu_of(pid: int) -> float:
    """Its own seconds, and those of its children that it has waited for."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def _script(directory: Path, workers: int) -> list[str]:
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(workers)]
    cluster = {"worker": [f"127.0.0.1:{probe.getsockname()[1]}" for probe in probes]}
    for probe in probes:
        probe.close()
    lines = ["#!/bin/sh", f"export TF_NUM_INTRAOP_THREADS={max(1, len(os.sched_getaffinity(0)) // workers)}"]
    for index in range(workers):
        config = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": index}})
        lines.append(f"TF_CONFIG={shlex.quote(config)} {shlex.quote(sys.executable)} train.py &")
    (directory / "start.sh").write_text("\n".join([*lines, "wait", ""]))
    return ["sh", "start.sh"]


def _tflaunch(directory: Path, workers: int, is_preloaded: bool) -> list[str]:
    spec = {
        "cluster": {"worker": workers},
        "command": [sys.executable, "train.py"],
        "restart": {"backoff": [0, 0]},
        "preload": ["tensorflow"] if is_preloaded else [],
    }
    (directory / "job.json").write_text(json.dumps(spec))
    return [str(Path(sys.executable).with_name("tflaunch")), "up", "job.json"]


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5, metavar="N", help="default: 5")
    parser.add_argument("--workers", type=int, default=4, metavar="N", help="default: 4")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep all raw figures")
    arguments = parser.parse_args()
    cores, python = len(os.sched_getaffinity(0)), platform.python_version()
    load = ", ".join(f"{average:.2f}" for average in os.getloadavg())
    print(f"{cores} cores, Python {python}, {platform.system()} {platform.release()}, load {load} at the start.\n")
    names = ["script", "tflaunch", "preload"]
    first: dict[str, list[Figure]] = {name: [] for name in names}
    again: dict[str, list[Figure]] = {name: [] for name in names[1:]}
    for turn in range(arguments.repeats):
        for name in names[turn % 3 :] + names[: turn % 3]:
            with tempfile.TemporaryDirectory(prefix="preload-", ignore_cleanup_errors=True) as scratch:
                started = Round(name, Path(scratch), arguments.workers)
                try:
                    first[name].append(started.first_step())
                    if name != "script":
                        again[name].append(started.recovery())
                finally:
                    started.end()
            print(f"round {turn + 1}, {name}: {first[name][-1]}", file=sys.stderr)
    print("\n".join([HEADING, RULE, *_lines("first step", first), *_lines("step after a kill", again)]))
    if arguments.json:
        raw = {"first": first, "again": again}
        arguments.json.write_text(json.dumps(raw, indent=1) + "\n")


def _lines(what: str, found: dict[str, list[Figure]]) -> list[str]:
    lines = []
    base = next(iter(found.values()))
    for name, figures in found.items():
        seconds, cpu = [figure.seconds for figure in figures], [figure.cpu for figure in figures]
        # A ratio within one round: what disturbed the machine then disturbed all.
        ratio = statistics.median(mine.seconds / other.seconds for mine, other in zip(figures, base, strict=True))
        cpu_ratio = statistics.median(mine.cpu / other.cpu for mine, other in zip(figures, base, strict=True))
        shown = [statistics.median(seconds), min(seconds), max(seconds), ratio, statistics.median(cpu), cpu_ratio]
        lines.append(f"| {name} | {what} | {' | '.join(f'{value:.2f}' for value in shown)} |")
    return lines


if __name__ == "__main__":
    main()
