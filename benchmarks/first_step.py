"""Measure how long N mirrored workers take to train a step, and to do so again after one was killed."""

import os
import signal
import time
from functools import partial

from parts import Bench, Part, own_directory
from peers import TFLAUNCH
from process_tree import cpu_seconds, workshop
from rounds import Found, Sample, in_turn, measured, remarks, table

from training import ENVIRONMENTS, ONE_STEP, PACKAGES, PRELOAD, SCRIPT, VICTIM, WAYS, Workers

SIZES = (2, 4, 8)
KILLED = 4  # one worker is killed in the run with this many
TEXT = f"""\
N workers of MultiWorkerMirroredStrategy on this machine, from the start of the command until each has trained
its first step. CPU is that of all processes until then: the workers, the process that imports, agent, launcher.
The ratio is to the shell script. The typical environment also has {", ".join(PACKAGES)}: Keras imports all of
them, tf_keras, which `tflaunch up` selects, pandas and pyarrow.
"""


def measure(bench: Bench) -> dict[str, Found]:
    """Measure all ways of starting with each number of workers."""
    found = {}
    for environment in ENVIRONMENTS:
        _one(SIZES[0], environment, SCRIPT)  # warm-up
        for size in SIZES:
            what = f"first step, {environment}, {size} workers"
            rounds = in_turn(what, WAYS, bench.repeats, partial(_one, size, environment))
            found[f"{environment} {size}"] = Found(rounds, {})
    return found


def _one(size: int, environment: str, way: str) -> Sample:
    with workshop("first-step") as (tree, scratch):
        workers = Workers(tree, own_directory(scratch), way, size, ONE_STEP, environment)
        seconds = workers.wait_for() - workers.started.begun
        sample = {"seconds": seconds, "cpu": cpu_seconds(tree.living(), with_ended_children=True)}
        if size == KILLED and way != SCRIPT:
            old = frozenset(workers.by_index.values())
            killed = time.monotonic()
            os.kill(workers.by_index[VICTIM], signal.SIGKILL)
            sample["again"] = workers.wait_for(but=old) - killed
        return sample


def section(found: dict[str, Found]) -> list[str]:
    """Return the lines of the document."""
    kinds = {"seconds": "s", "cpu": "CPU s"}
    tables = []
    for environment in ENVIRONMENTS:
        sized = {name.split()[1]: one for name, one in found.items() if name.split()[0] == environment}
        for name, unit in kinds.items():
            cells = (cell for size in sized for cell in (f"N = {size}, {unit}", "ratio"))
            rows = [[way, *measured(sized.values(), way, SCRIPT, name)] for way in WAYS]
            tables += [*table([f"{environment} environment, until the first step", *cells], rows), ""]
    killed = [found[f"{environment} {KILLED}"] for environment in ENVIRONMENTS]
    again = [[way, *measured(killed, way, TFLAUNCH, "again")] for way in (TFLAUNCH, PRELOAD)]
    return [
        *tables,
        f"One of {KILLED} workers that have trained is killed (SIGKILL), until all {KILLED} train again:",
        "",
        *table(["restarted by", *(cell for name in ENVIRONMENTS for cell in (f"{name}, s", "ratio"))], again),
        "",
        *remarks(found),
    ]


PART = Part("First step of mirrored workers", TEXT, measure, section)
