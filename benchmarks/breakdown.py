"""Break down the time of `tflaunch up`, from its journal and three timestamps of a calling program.

The journal says when the run began, when the agent joined, and so on. Everything before it is timed by a program
that is started in place of the `tflaunch` command: it records when the interpreter reaches its first line, when it
begins to import planning, and when it begins to import what starts a run. The plain command is measured in
the same round, which shows the overhead of the timestamps.
"""

import itertools
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from budgets import budgets, exceeded
from parts import Bench, Part, journal, nothing, outcome, own_directory
from peers import TFLAUNCH, Job, launchers
from process_tree import ProcessTree, workshop
from rounds import Found, Sample, figure, figures, in_turn, median, ratio, table

SIZES = (8, 64)
LIMIT = 30.0
MARKED = "with marks"
PROGRAM = """
import time
marks = [time.monotonic()]
import sys
waited_for = ["tflaunch.runtime.launch", "tflaunch.discovery.prepare"]
def hook(event, arguments):
    if event == "import" and waited_for and arguments[0] == waited_for[-1]:
        waited_for.pop()
        marks.append(time.monotonic())
        with open("marks", "w") as file:
            file.write(" ".join(map(str, marks)))
sys.addaudithook(hook)
from tflaunch.__main__ import main
main()
"""
STEPS = {
    "interpreter": "the launcher's interpreter starts",
    "import": "it imports the command line",
    "plan": "it reads and plans the spec",
    "run": "it imports what runs a job, and starts the agent's interpreter",
    "join": "the agent greets",
    "ports": "ports are held",
    "start": "all tasks are started",
    "tasks": "the last task ends, and it is certain that nothing of it is left",
    "close": "the agent is dismissed, the journal closed",
    "return": "agent and launcher end",
}
UNIT = "interpreter"
TEXT = """\
Consecutive parts of one `tflaunch up` of N times `/bin/true` with an unchanged spec, from the times in its own
journal and three marks of a program that calls it. Each is a median, so they add up only nearly. The unit is the
start of the interpreter in the same run; budgets are in [budgets](budgets.md).
"""


def measure(bench: Bench) -> dict[str, Found]:
    """Measure `tflaunch up` with and without timestamps."""
    found = {}
    launcher = launchers(bench.peers)[TFLAUNCH]
    with workshop("breakdown") as (tree, scratch):
        for size in SIZES:
            jobs = {name: Job(size, ("/bin/true",), own_directory(scratch)) for name in (TFLAUNCH, MARKED)}

            def one(name: str, jobs: dict[str, Job] = jobs) -> Sample:
                job = jobs[name]
                argv = launcher.argv(job)
                if name == MARKED:
                    argv = [sys.executable, "-c", PROGRAM, *argv[1:]]
                shutil.rmtree(job.directory / "home" / "runs", ignore_errors=True)
                return _one(tree, argv, job.directory, is_marked=name == MARKED)

            for name in jobs:
                one(name)  # the spec is new
            found[str(size)] = Found(in_turn(f"breakdown, {size} tasks", (TFLAUNCH, MARKED), bench.repeats, one), {})
    return found


def _one(tree: ProcessTree, argv: list[str], directory: Path, *, is_marked: bool) -> Sample:
    begun = time.monotonic()
    wall = time.time() - begun
    run = tree.run(argv, directory, nothing(), LIMIT)
    sample = outcome(run.exit_code, whole=1000 * run.seconds)
    if not is_marked or run.exit_code:
        return sample
    in_program = map(float, (directory / "marks").read_text().split())
    records = journal(directory)
    marks = [
        begun,
        *in_program,
        _last(records, "plan"),
        _last(records, "host_joined"),
        _last(records, "ports_held"),
        _last(records, "task_started", "at"),
        _last(records, "task_gone"),
        _last(records, "ended", "time") - wall,  # the only record without a monotonic time
        begun + run.seconds,
    ]
    spans = [1000 * (later - earlier) for earlier, later in itertools.pairwise(marks)]
    return {**sample, **dict(zip(STEPS, spans, strict=True))}


def _last(records: list[dict[str, Any]], kind: str, field: str = "now") -> float:
    return float(max(record[field] for record in records if record["kind"] == kind))


def section(found: dict[str, Found]) -> list[str]:
    """Return the lines of the document."""
    allowed = budgets()
    rows, over = [], []
    for step, words in STEPS.items():
        cells = []
        for (size, one), limit in zip(found.items(), allowed.get(step, [None] * len(found)), strict=True):
            cost = ratio(one, MARKED, MARKED, step, UNIT)
            cells += figures([median(one, MARKED, step), cost, limit])
            over += [(f"{step} of {size} tasks", cost, limit)] if limit is not None else []
        rows.append([words, *cells])
    for words, name in (("whole command", MARKED), ("the same without marks", TFLAUNCH)):
        rows.append([words, *(cell for one in found.values() for cell in (figure(median(one, name, "whole")), "", ""))])
    head = ["what happens", *(f"{cell}" for size in found for cell in (f"{size} tasks, ms", "units", "budget"))]
    return [*table(head, rows), *exceeded(over)]


PART = Part("What a start of tflaunch is spent on", TEXT, measure, section)
