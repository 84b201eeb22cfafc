"""Measure how long a launcher takes for N tasks that do nothing: the whole command, start to return."""

import sys
from pathlib import Path

from parts import Bench, Part, last_line, nothing, outcome, own_directory
from peers import POPEN, Job, Launcher, launchers
from process_tree import ProcessTree, Run, workshop
from rounds import Found, Sample, in_turn, measured, remarks, table
from supervisord import shut_down_when_done

SIZES = (8, 64, 256)
NOTHING = ("/bin/true",)
LIMIT = 10.0  # seconds until a run counts as hung
COLD = 20.0  # the same with cold caches
TEXT = f"""\
The whole command, from its start to its return. The ratio is to a bare `subprocess.Popen` of the same tasks. A
round that lasts {LIMIT:g} s is killed and counts as hung; the figures are of the other rounds. honcho ends all
tasks at the first exit, because it is not a batch runner. supervisord never ends by itself: it is asked every few
milliseconds whether all is done, and shut down.
"""


def measure(bench: Bench) -> dict[str, Found]:
    """Measure all launchers with each number of tasks."""
    found = {}
    with workshop("startup") as (tree, scratch):
        for size in SIZES:
            found[str(size)] = _compare(tree, list(launchers(bench.peers).values()), size, scratch, bench.repeats)
    return found


def _compare(tree: ProcessTree, rows: list[Launcher], size: int, scratch: Path, repeats: int) -> Found:
    jobs = {row.name: (row, Job(size, NOTHING, own_directory(scratch))) for row in rows}
    said, able = {}, []
    for name, (row, job) in jobs.items():
        is_able, said[name] = _verify(tree, row, job)
        able += [name] if is_able else []

    def one(name: str) -> Sample:
        run = _run(tree, *jobs[name], nothing(), LIMIT)
        return outcome(run.exit_code, seconds=run.seconds, left=run.left_running)

    return Found(in_turn(f"startup, {size} tasks", able, repeats, one), said)


def _run(tree: ProcessTree, launcher: Launcher, job: Job, output: Path, limit: float) -> Run:
    started = tree.start(launcher.argv(job), job.directory, output)
    if launcher.name == "supervisord":
        shut_down_when_done(started, job.directory, limit)
    return tree.finish(started, limit)


def _verify(tree: ProcessTree, launcher: Launcher, job: Job) -> tuple[bool, list[str]]:
    """Verify, with tasks that write to a file, that all of them run; this is also the warm-up."""
    print(f"startup, {job.tasks} tasks: {launcher.name} is tried", file=sys.stderr)
    if not launcher.program:
        return False, [launcher.remedy]
    marks, script, output = (job.directory / name for name in ("marks", "mark.sh", "output"))
    script.write_text(f"echo $$ >>'{marks}'\n")
    marks.touch()
    run = _run(tree, launcher, job._replace(command=("/bin/sh", str(script))), output, COLD)
    said = []
    if (ran := len(marks.read_text().split())) != job.tasks:
        said.append(f"of {job.tasks} tasks {ran} ran to their end")
    if run.exit_code is None:
        said.append("hung when it was tried")  # perhaps only sometimes: the rounds may still end
    elif run.exit_code:
        said.append(f"exit code {run.exit_code}: {last_line(output)}")
    return not run.exit_code, said


def section(found: dict[str, Found]) -> list[str]:
    """Return the lines of the document."""
    names = list(next(iter(found.values())).notes)
    head = ["whole command", *(cell for size in found for cell in (f"N = {size}, s", "ratio"))]
    rows = [[name, *measured(found.values(), name, POPEN, "seconds")] for name in names]
    return [*table(head, rows), "", *remarks(found, "N = {}")]


PART = Part("Start of tasks that do nothing", TEXT, measure, section, has_peers=True)
