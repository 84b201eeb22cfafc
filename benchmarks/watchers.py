"""What ten other terminals cost a run of 64 tasks: five times `ps --watch`, five times `logs -f`, some of them stopped.

The same run is made without and with them, in turn, so that a busy moment of the machine meets both alike.

The tasks mostly wait: each writes a line, sleeps a while, and does so again. On a machine whose cores were all busy
the terminals' own need of CPU would slow every run, and say nothing about the supervisor. What would show is a task
that is held up when it writes: its pauses are between its lines, so every delay adds to its time. An evaluator that
ends and asks for a restart, again and again, shows how soon the supervisor gets to what has happened: from each of its
exits to the start of the next attempt.
"""

import argparse
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

TASKS = 64
KINDS = (["ps", "--watch"], ["logs", "-f"])
STOPPED = 2
"""Of each kind."""
WATCHERS = 10
LIMIT = 120.0
HEADING = "| median of each round | alone | with 10 readers | ratio |"
RULE = "|---|---:|---:|---:|"
WORDS = {
    "duration": "first line to last line, s",
    "supervisor": "CPU of the supervisor, s",
    "agent": "CPU of the agent, s",
    "readers": "CPU of the readers, s",
    "reaction": "from an exit to the next start, s",
    "slowest": "the slowest of these, s",
}
PULSE = "until test -e go; do sleep 0.1; done; sleep 0.7; exit 42"
"""42 means \"saved, start me again\", which costs no budget."""
PROGRAM = """
import os, time
def wait_for(name):
    while not os.path.exists(name):
        time.sleep(0.1)
print("ready", flush=True)
wait_for("go")
begun = time.monotonic()
for number in range({lines}):
    print("step", number, "of {lines}: a line as long as those of programs that train", flush=True)
    time.sleep({pause})
ended = time.monotonic()
with open("done-" + os.environ["TFLAUNCH_TASK"] + ".new", "w") as file:
    file.write(repr([begun, ended]))
os.rename(file.name, file.name[:-4])
wait_for("end")
"""


class Round(NamedTuple):
    """Seconds.

    ``duration``: from the first line to the last; ``supervisor``, ``agent``, ``readers``: CPU meanwhile;
    ``reaction``: from an exit of the evaluator to its next start, as a rule; ``slowest``: at most.
    """

    duration: float
    supervisor: float
    agent: float
    readers: float
    reaction: float
    slowest: float


class Watched:
    """A run of many tasks, and its readers."""

    def __init__(self, directory: Path, lines: int, pause: float) -> None:
        self._directory = directory
        self._environ = {**os.environ, "TFLAUNCH_HOME": str(directory / "home")}
        self._readers: list[subprocess.Popen[bytes]] = []
        self._shown: dict[int, Path] = {}
        spec = {
            "cluster": {"worker": TASKS - 1, "evaluator": 1},
            "command": [sys.executable, "-I", "-S", "-c", PROGRAM.format(lines=lines, pause=pause)],
            "roles": {"evaluator": {"command": ["sh", "-c", PULSE]}},
            "restart": {"max": 1_000_000, "backoff": [0, 0]},
        }
        (directory / "job.json").write_text(json.dumps(spec))
        self._popen("up", "-d", "job.json").wait(LIMIT)
        (self._journal,) = directory.glob("home/runs/*/events.jsonl")
        self._supervisor = _process("up", directory)
        self._agent = int(Path(f"/proc/{self._started('worker:0')[0]['pid']}/stat").read_text().split()[3])

    def watch(self, count: int) -> None:
        """Open so many terminals of each kind, and stop some of them once all show something."""
        readers = [[self._popen(*words) for _ in range(count)] for words in KINDS]
        self._readers = [reader for kind in readers for reader in kind]
        for reader in self._readers:
            _wait_for(lambda shown=self._shown[reader.pid]: shown.stat().st_size > 0)
        for kind in readers:
            for reader in kind[:STOPPED]:
                reader.send_signal(signal.SIGSTOP)

    def measure(self) -> Round:
        """Let the tasks work, and end the run."""
        processes = [self._supervisor, self._agent, *(reader.pid for reader in self._readers)]
        before = [_cpu(pid) for pid in processes]
        (self._directory / "go").touch()
        _wait_for(lambda: len([*self._directory.glob("done-*[0-9]")]) == TASKS - 1)
        supervisor, agent, *readers = (_cpu(pid) - was for pid, was in zip(processes, before, strict=True))
        times = [json.loads(path.read_text()) for path in self._directory.glob("done-*[0-9]")]
        begun, ended = min(first for first, _ in times), max(last for _, last in times)
        reactions = self._reactions(begun, ended)
        slowest = max(reactions)
        return Round(ended - begun, supervisor, agent, sum(readers), statistics.median(reactions), slowest)

    def end(self) -> None:
        """Let the tasks end, then the readers."""
        (self._directory / "end").touch()
        self._popen("wait").wait(LIMIT)
        for reader in self._readers:
            reader.kill()
            reader.wait(LIMIT)

    def _reactions(self, begun: float, ended: float) -> list[float]:
        exits = [record for record in self._records("task_exited", "evaluator:0") if begun < record["at"] < ended]
        starts = {record["attempt"]: record["at"] for record in self._started("evaluator:0")}
        return [starts[record["attempt"] + 1] - record["at"] for record in exits if record["attempt"] + 1 in starts]

    def _started(self, task: str) -> list[dict[str, Any]]:
        return self._records("task_started", task)

    def _records(self, kind: str, task: str) -> list[dict[str, Any]]:
        records = [json.loads(line) for line in self._journal.read_text().splitlines()]
        return [record for record in records if record["kind"] == kind and record["task"] == task]

    def _popen(self, *words: str) -> subprocess.Popen[bytes]:
        path = self._directory / f"shown-{len(self._shown)}"
        with path.open("wb") as shown:
            process = subprocess.Popen(
                [str(Path(sys.executable).with_name("tflaunch")), *words],
                cwd=self._directory,
                env=self._environ,
                stdin=subprocess.DEVNULL,
                stdout=shown,
                stderr=subprocess.DEVNULL,
            )
        self._shown[process.pid] = path
        return process


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7, metavar="N", help="pairs of runs (default: 7)")
    parser.add_argument("--lines", type=int, default=160, metavar="N", help="of each task (default: 160)")
    parser.add_argument("--pause", type=float, default=0.05, metavar="S", help="between two lines (default: 0.05)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep all raw figures")
    arguments = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM):
        # By way of an exception, so that what is under way is ended too.
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    load = ", ".join(f"{average:.2f}" for average in os.getloadavg())
    cores, python = len(os.sched_getaffinity(0)), platform.python_version()
    print(f"{cores} cores, Python {python}, {platform.system()} {platform.release()}, load {load} at the start.\n")
    found: dict[int, list[Round]] = {0: [], WATCHERS: []}
    for turn in range(arguments.repeats):
        print(f"round {turn + 1} of {arguments.repeats}", file=sys.stderr)
        for count in (0, WATCHERS) if turn % 2 == 0 else (WATCHERS, 0):
            found[count].append(_round(count, arguments.lines, arguments.pause))
    print("\n".join([HEADING, RULE, *_lines(found)]))
    if arguments.json:
        raw = {count: [one._asdict() for one in rounds] for count, rounds in found.items()}
        arguments.json.write_text(json.dumps(raw, indent=1) + "\n")


def _round(count: int, lines: int, pause: float) -> Round:
    with tempfile.TemporaryDirectory(prefix="watchers-", ignore_cleanup_errors=True) as scratch:
        watched = Watched(Path(scratch), lines, pause)
        try:
            watched.watch(count // len(KINDS))
            return watched.measure()
        finally:
            watched.end()


def _process(verb: str, directory: Path) -> int:
    """Return the process of tflaunch with a verb that has a home in a directory."""
    home = f"TFLAUNCH_HOME={directory / 'home'}".encode()
    for path in Path("/proc").glob("[0-9]*"):
        try:
            words = (path / "cmdline").read_bytes().split(b"\0")
            if verb.encode() in words and home in (path / "environ").read_bytes().split(b"\0"):
                return int(path.name)
        except OSError:
            continue  # it has ended
    raise SystemExit("the run did not start")


def _cpu(pid: int) -> float:
    """Return the CPU seconds of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _wait_for(is_done: Callable[[], bool]) -> None:
    end = time.monotonic() + LIMIT
    while not is_done():
        if time.monotonic() > end:
            raise SystemExit("it takes too long")
        time.sleep(0.05)


def _lines(found: dict[int, list[Round]]) -> list[str]:
    lines = []
    for name, words in WORDS.items():
        alone, watched = ([getattr(one, name) for one in rounds] for rounds in found.values())
        figures = [f"{statistics.median(values):.4g}" for values in (alone, watched)]
        # A ratio within one round: what disturbed the machine then disturbed both.
        ratios = [with_all / without for without, with_all in zip(alone, watched, strict=True) if without]
        ratio = f"{statistics.median(ratios):.3f}" if ratios else "-"
        lines.append(f"| {' | '.join([words, *figures, ratio])} |")
    return lines


if __name__ == "__main__":
    main()
