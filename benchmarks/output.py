"""Measure a launcher's time and CPU for 80 MB of lines of 4 tasks, and count lost and torn lines."""

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import writer
from parts import Bench, Part, outcome, own_directory
from peers import PARALLEL, SHELL, TFLAUNCH, Job, Launcher, launchers
from process_tree import ProcessTree, cpu_of_children, workshop
from rounds import Found, Sample, figures, in_turn, measured, median, remarks, table, values

TASKS = 4
LINES = 200_000
MODES = {"block": "block-buffered", "line": "flushed after each line"}
MEGABYTES = TASKS * LINES * (writer.LENGTH + 1) / 1e6
LIMIT = 60.0
PREFIX = 40  # maximum length of a launcher's prefix


class Way(NamedTuple):
    """A launcher with options."""

    launcher: str
    options: tuple[str, ...] = ()
    files: str = ""
    """Glob pattern of the output files, if the lines are not in the launcher's own output."""
    modes: tuple[str, ...] = tuple(MODES)


BASE = "sh, `&` and `wait` > file"
WAYS = {
    BASE: Way(SHELL),
    "parallel --line-buffer --tag": Way(PARALLEL, ("--line-buffer", "--tag")),
    TFLAUNCH: Way(TFLAUNCH),
    "torchrun --redirects 3": Way("torchrun", ("--redirects", "3", "--log-dir", "ranks"), "ranks/**/stdout.log"),
    "torchrun --tee 3": Way("torchrun", ("--tee", "3", "--log-dir", "ranks")),
    "mpirun --tag-output": Way("mpirun", ("--tag-output",)),
    "honcho": Way("honcho", modes=("block",)),  # it takes 10 s
}
TEXT = f"""\
{TASKS} tasks write {LINES:,} lines of {writer.LENGTH + 1} characters each, {MEGABYTES:g} MB in all; the
launcher's output is one file. *Lost* are lines that did not arrive whole, *torn* those that no task wrote like
this or that came twice: every line is compared with what its task wrote. CPU is that of the launcher's
processes, without the tasks. The ratio is to the shell, which lets the tasks write into the file themselves.
tflaunch also keeps a log of each task; `torchrun --redirects 3` writes a file for each rank and no common
one.
"""


def measure(bench: Bench) -> dict[str, Found]:
    """Measure all launchers with both kinds of writers."""
    known = launchers(bench.peers)
    able = [name for name, way in WAYS.items() if known[way.launcher].program]
    missing = {name: [known[way.launcher].remedy] for name, way in WAYS.items() if name not in able}
    written = {count: _written(count) for count in (1, LINES)}
    found = {}
    with workshop("output") as (tree, scratch):
        for mode, words in MODES.items():

            def one(name: str, mode: str = mode, count: int = LINES) -> Sample:
                directory, way = own_directory(scratch), WAYS[name]
                command = (sys.executable, "-I", writer.__file__, str(directory), str(count), mode)
                job = Job(TASKS, command, directory, way.options)
                return _one(tree, known[way.launcher], job, way.files, written[count])

            names = [name for name in able if mode in WAYS[name].modes]
            for name in names:
                one(name, count=1)  # warm-up
            found[mode] = Found(in_turn(f"output, {words}", names, bench.repeats, one), missing)
    return found


def _written(count: int) -> frozenset[bytes]:
    return frozenset(line.encode() for number in range(TASKS) for line in writer.lines(number, count))


def _one(tree: ProcessTree, launcher: Launcher, job: Job, files: str, written: frozenset[bytes]) -> Sample:
    output = job.directory / "output"
    before = cpu_of_children()
    run = tree.finish(tree.start(launcher.argv(job), job.directory, output, job.directory / "errors"), LIMIT)
    everything = cpu_of_children() - before
    of_tasks = sum(float(path.read_text()) for path in job.directory.glob("cpu-*"))
    paths = list(job.directory.glob(files)) if files else [output]
    lost, torn = _damage(paths, written)
    for path in (output, *paths):
        path.unlink(missing_ok=True)
    cpu = 1000 * max(0.0, everything - of_tasks) / MEGABYTES
    damage = {"lost": lost, "torn": torn, "left": run.left_running}
    return outcome(run.exit_code, seconds=run.seconds, cpu_ms_per_mb=cpu, **damage)


def _damage(files: list[Path], written: frozenset[bytes]) -> tuple[int, int]:
    """Return how many lines did not arrive intact, and how many were never written or arrived again.

    A line is intact if it is exactly what a task wrote, apart from the launcher's prefix; the launcher's own messages
    do not count.
    """
    seen = Counter(line[-writer.LENGTH :] if len(line) <= writer.LENGTH + PREFIX else line for line in _lines(files))
    whole = seen.keys() & written
    pieces = sum(count for line, count in seen.items() if line not in whole and b"~" in line)
    again = sum(seen[line] - 1 for line in whole)
    return len(written) - len(whole), pieces + again


def _lines(files: list[Path]) -> Iterator[bytes]:
    for path in files:
        yield from path.read_bytes().replace(b"\r\n", b"\n").split(b"\n")


def section(found: dict[str, Found]) -> list[str]:
    """Return the lines of the document."""
    blocks = [line for mode, one in found.items() for line in ["", *_block(mode, one)]]
    return [*blocks, "", *remarks(found, "writers {}")]


def _block(mode: str, found: Found) -> list[str]:
    rows = []
    for name in found.rounds:
        cells = measured([found], name, BASE, "seconds")
        damage = [_span(values(found, name, what)) for what in ("lost", "torn")]
        cpu = figures([median(found, name, "cpu_ms_per_mb")])
        rows.append([name, *cells, *damage, *cpu])
    return table([f"writers {MODES[mode]}", "s", "ratio", "lost", "torn", "CPU ms per MB"], rows)


def _span(counts: list[float]) -> str:
    if not counts:
        return ""
    low, high = min(counts), max(counts)
    return f"{high:,.0f}" if low == high else f"{low:,.0f} to {high:,.0f}"


PART = Part("Output", TEXT, measure, section, has_peers=True)
