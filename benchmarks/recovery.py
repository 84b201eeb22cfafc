"""Measure how long it takes until training continues after one of two mirrored workers was killed.

The same program runs under `tflaunch up`, with and without a shared import, and under a plain restart loop, as in a
process manager: it waits for all workers to end, then starts all of them again. There the survivor ends when
TensorFlow itself notices.

TensorFlow notices in the collective that waits for the dead peer, so the workers are killed once during their
steps, which follow each other without a pause, and once while they do something else for a second.
"""

import os
import signal
import time
from functools import partial
from pathlib import Path

from parts import Bench, Part, journal, own_directory
from peers import TFLAUNCH
from process_tree import ProcessTree, StuckError, all_ended, workshop
from rounds import Found, Sample, figure, in_turn, measured, remarks, table, values

from training import LIMIT, MANY_STEPS, NO_PRELOAD, SCRIPT, VICTIM, Workers

COUNT = 2
LOOP = "restart loop"
WAYS = (LOOP, NO_PRELOAD, TFLAUNCH)
PAUSES = {"in a step": 0, "between two steps": 1}
"""When the worker is killed: seconds that a worker does something else after each step."""
WORDS = {"gone": "last old process gone", "started": "all new processes started", "stepped": "first new step"}
TEXT = f"""\
One of {COUNT} mirrored workers is killed (SIGKILL) in training, once in a step and once between two steps. The ratio
is to a plain restart loop, where the survivor ends when TensorFlow itself notices. What is left until the first new
step is TensorFlow's own start.
"""


def measure(bench: Bench) -> dict[str, Found]:
    """Measure all ways of restarting with each moment of the kill."""
    _one(MANY_STEPS.format(pause=0), LOOP)  # warm-up
    found = {}
    for moment, pause in PAUSES.items():
        what = MANY_STEPS.format(pause=pause)
        rounds = in_turn(f"recovery, killed {moment}", WAYS, bench.repeats, partial(_one, what))
        found[moment] = Found(rounds, {})
    return found


def _one(what: str, way: str) -> Sample:
    with workshop("recovery") as (tree, scratch):
        directory = own_directory(scratch)
        workers = Workers(tree, directory, SCRIPT if way == LOOP else way, COUNT, what)
        workers.wait_for(steps=1)
        old = frozenset(workers.by_index.values())
        killed = time.monotonic()
        os.kill(workers.by_index[VICTIM], signal.SIGKILL)
        if not all_ended(old, killed + LIMIT):
            raise StuckError(f"a worker did not end within {LIMIT:g} s")
        gone = time.monotonic()
        if way == LOOP:
            workers = _again(tree, directory, workers, what)
        stepped = workers.wait_for(workers=1, but=old)
        started = workers.started.begun if way == LOOP else _started(directory)
        return {"gone": gone - killed, "started": started - killed, "stepped": stepped - killed}


def _again(tree: ProcessTree, directory: Path, workers: Workers, what: str) -> Workers:
    """Start all workers again as soon as the script has seen all of them end."""
    workers.started.process.wait()
    return Workers(tree, directory, SCRIPT, COUNT, what)


def _started(directory: Path) -> float:
    """Return when the run knew that the last worker of the next attempt had started."""
    times: list[float] = [
        record["now"] for record in journal(directory) if record["kind"] == "task_started" and record["attempt"] == 1
    ]
    return max(times)


def section(found: dict[str, Found]) -> list[str]:
    """Return the lines of the document."""
    head = ["restarted by", "until"]
    head += [f"{moment}: {what}" for moment in found for what in ("s", "max", "ratio")]
    rows = [
        [way, words, *(cell for one in found.values() for cell in _cells(one, way, name))]
        for name, words in WORDS.items()
        for way in WAYS
    ]
    return [*table(head, rows), "", *remarks(found)]


def _cells(found: Found, way: str, name: str) -> list[str]:
    middle, relative = measured([found], way, LOOP, name)
    return [middle, figure(max(values(found, way, name), default=None)), relative]


PART = Part("Recovery", TEXT, measure, section)
