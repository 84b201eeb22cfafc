"""How long a launcher takes for N tasks that do nothing: the whole command, start to return.

All launchers are measured in one run and in turn, so that a busy moment of the machine meets
each of them alike, and each round is compared with its own bare Popen.
"""

import argparse
import json
import os
import platform
import signal
import statistics
import sys
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path

from peers import BASE, LIMIT, Brood, Job, Launcher, Run, install, launchers

NOTHING = ("/bin/true",)
HEADING = "| launcher | median s | min s | max s | ratio to Popen | tasks run | notes |"
RULE = "|---|---:|---:|---:|---:|---:|---|"


@dataclass(frozen=True)
class Machine:
    """What the seconds depend on."""

    cores: int
    python: str
    system: str
    load: tuple[float, float, float]


@dataclass
class Row:
    """What was seen of one launcher at one number of tasks."""

    launcher: Launcher
    job: Job
    tasks_run: int | None = None
    notes: list[str] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    measurable: bool = True

    @property
    def sound(self) -> list[float | None]:
        """The seconds of each round, None for one that hung or failed."""
        return [run.seconds if run.exit_code == 0 else None for run in self.runs]


def main() -> None:
    """Measure, print a table for each number of tasks, and keep the raw figures if asked."""
    arguments = _arguments()
    for number in (signal.SIGINT, signal.SIGTERM):
        # By way of an exception, so that the launchers under way are ended too.
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    brood = Brood()
    machine = _machine()
    with tempfile.TemporaryDirectory(prefix="startup-", ignore_cleanup_errors=True) as directory:
        try:
            venv = _peers_venv(arguments, Path(directory))
            print(_sentence(machine), flush=True)
            groups = []
            for tasks in arguments.tasks:
                rows = [_row(launcher, tasks, Path(directory)) for launcher in launchers(venv)]
                _measure(brood, rows, arguments.repeats)
                print("\n".join(["", f"{tasks} x {NOTHING[0]}", "", *_table(rows)]), flush=True)
                groups.append({"tasks": tasks, "rows": [_raw(row) for row in rows]})
        finally:
            brood.end()
    if arguments.json:
        report = {"machine": asdict(machine), "repeats": arguments.repeats, "groups": groups}
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=_counts, default=[8, 64], metavar="N,N", help="default: 8,64")
    parser.add_argument("--repeats", type=_count, default=7, metavar="N", help="default: 7")
    parser.add_argument("--peers-venv", type=Path, metavar="DIR", help="virtual environment with the PyPI peers")
    parser.add_argument(
        "--install-peers", action="store_true", help="make that environment first (else a temporary one)"
    )
    parser.add_argument("--with-torch", action="store_true", help="with torch, for torchrun: large")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep all raw figures")
    arguments = parser.parse_args()
    if arguments.with_torch and not arguments.install_peers:
        parser.error("--with-torch says what to install: add --install-peers")
    if arguments.peers_venv and not arguments.install_peers and not arguments.peers_venv.is_dir():
        parser.error(f"{arguments.peers_venv} is no directory: add --install-peers to make it")
    return arguments


def _counts(text: str) -> list[int]:
    return [_count(part) for part in text.split(",")]


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1 up")
    return int(text)


def _peers_venv(arguments: argparse.Namespace, scratch: Path) -> Path | None:
    given: Path | None = arguments.peers_venv
    if not arguments.install_peers:
        return given
    venv = given or scratch / "peers"
    install(venv, with_torch=arguments.with_torch)
    return venv


# Measuring.


def _row(launcher: Launcher, tasks: int, scratch: Path) -> Row:
    # Each has its own directory, so that no launcher finds the files of another.
    directory = Path(tempfile.mkdtemp(dir=scratch))
    return Row(launcher, Job(tasks, NOTHING, directory))


def _measure(brood: Brood, rows: list[Row], repeats: int) -> None:
    for row in rows:
        _verify(brood, row)
    able = [row for row in rows if row.measurable]
    for row in able:
        _run(brood, row)
    for turn in range(repeats):
        print(f"{rows[0].job.tasks} tasks, round {turn + 1} of {repeats}", file=sys.stderr)
        first = turn % len(able)
        for row in able[first:] + able[:first]:
            row.runs.append(_run(brood, row))
    for row in able:
        row.notes += _noteworthy(row.runs)


def _run(brood: Brood, row: Row) -> Run:
    return _run_job(brood, row.launcher, row.job, Path(os.devnull))


def _run_job(brood: Brood, launcher: Launcher, job: Job, output: Path) -> Run:
    return brood.run(launcher, launcher.argv(launcher.program, job), job, output)


def _verify(brood: Brood, row: Row) -> None:
    """See with tasks that leave a mark that all of them run, and that none stays."""
    launcher, directory = row.launcher, row.job.directory
    if not launcher.program:
        row.measurable = False
        row.notes.append(f"not installed: `{launcher.remedy}`")
        return
    marks, script, output = (directory / name for name in ("marks", "mark.sh", "output"))
    script.write_text(f"echo $$ >>'{marks}'\n")
    marks.touch()
    run = _run_job(brood, launcher, Job(row.job.tasks, ("/bin/sh", str(script)), directory), output)
    if launcher.runs_tasks:
        row.tasks_run = len(marks.read_text().split())
        if row.tasks_run != row.job.tasks:
            row.notes.append("did not run each task once to its end")
    if run.exit_code is None:
        # A race hangs sometimes only: the timed runs may still end.
        row.notes.append("hung when verified")
    elif run.exit_code != 0:
        row.measurable = False
        row.notes.append(f"exit code {run.exit_code}: {_last_line(output)}")
    if run.left_running:
        row.notes.append(f"left {run.left_running} running when verified")


def _last_line(output: Path) -> str:
    lines = output.read_text(errors="replace").split("\n")
    return next((line.strip().replace("|", "/") for line in reversed(lines) if line.strip()), "no output")


def _noteworthy(runs: list[Run]) -> list[str]:
    seen = {
        f"hung (killed after {LIMIT:g} s)": sum(run.exit_code is None for run in runs),
        "failed": sum(run.exit_code not in (None, 0) for run in runs),
        "left tasks running": sum(run.left_running > 0 for run in runs),
    }
    return [f"{what} in {count} of {len(runs)} runs" for what, count in seen.items() if count]


# Reporting.


def _machine() -> Machine:
    system = f"{platform.system()} {platform.release()}"
    return Machine(len(os.sched_getaffinity(0)), platform.python_version(), system, os.getloadavg())


def _sentence(machine: Machine) -> str:
    load = ", ".join(f"{average:.2f}" for average in machine.load)
    return f"{machine.cores} cores, Python {machine.python}, {machine.system}, load {load} at the start."


def _table(rows: list[Row]) -> list[str]:
    base = next(row.sound for row in rows if row.launcher.name == BASE)
    return [HEADING, RULE, *(_line(row, base) for row in rows)]


def _line(row: Row, base: list[float | None]) -> str:
    seconds = [value for value in row.sound if value is not None]
    # A ratio within one round: what disturbed the machine then disturbed both.
    ratios = [value / unit for value, unit in zip(row.sound, base, strict=False) if value and unit]
    cells = ["-"] * 4
    if seconds:
        cells[:3] = [f"{value:.3f}" for value in (statistics.median(seconds), min(seconds), max(seconds))]
    if ratios:
        cells[3] = f"{statistics.median(ratios):.2f}"
    ran = "-" if row.tasks_run is None else f"{row.tasks_run} of {row.job.tasks}"
    return f"| {' | '.join([row.launcher.name, *cells, ran, '; '.join(row.notes)])} |"


def _raw(row: Row) -> dict[str, object]:
    return {
        "launcher": row.launcher.name,
        "program": row.launcher.program,
        "tasks_run": row.tasks_run,
        "notes": row.notes,
        "runs": [asdict(run) for run in row.runs],
    }


if __name__ == "__main__":
    main()
