"""Measure what a warm server saves: a second start of mirrored workers, and tests that each form a cluster."""

import os
import sys
from functools import partial
from pathlib import Path
from xml.etree import ElementTree as ET

from parts import Bench, Part, own_directory
from peers import TFLAUNCH
from process_tree import StuckError, cpu_seconds, workshop
from rounds import Found, Sample, in_turn, measured, remarks, table

from training import ENVIRONMENTS, LIMIT, ONE_STEP, SCRIPT, WARM, Workers

SIZES = (2, 4)
WAYS = (SCRIPT, TFLAUNCH, WARM)
TESTS = 100
FIRST, LATER = "the first test", "each later test"
TEXT = f"""\
The same workers as in the section before. With `warm`, an earlier run has left a process that has imported TensorFlow;
its own time is not counted. The ratio is to the shell script.

Then {TESTS} tests with pytest, which all form a cluster of two mirrored workers and add up a number there.
"""
ENDS = "train()\n"
TEST = f"""
import pytest

@pytest.mark.parametrize("number", range({TESTS}))
@pytest.mark.tflaunch(worker=2, timeout=120)
def test_sum(number):
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    one = strategy.run(tf.function(lambda: tf.constant(1.0)))
    assert float(strategy.reduce("SUM", one, axis=None)) == 2
"""


def measure(bench: Bench) -> dict[str, Found]:
    """Measure all ways of starting with each number of workers, and the tests."""
    found = {}
    for environment in ENVIRONMENTS:
        for size in SIZES:
            what = f"second start, {environment}, {size} workers"
            rounds = in_turn(what, WAYS, bench.repeats, partial(_one, size, environment))
            found[f"{environment} {size}"] = Found(rounds, {})
    samples = [_tests() for _ in range(max(1, bench.repeats // 2))]
    found["tests"] = Found({name: [sample[name] for sample in samples] for name in (FIRST, LATER)}, {})
    return found


def _one(size: int, environment: str, way: str) -> Sample:
    with workshop("warm") as (tree, scratch):
        directory = own_directory(scratch)
        if way == WARM:
            Workers(tree, directory, way, size, ENDS, environment).started.wait(LIMIT)
        before = cpu_seconds(tree.living(), with_ended_children=True)
        workers = Workers(tree, directory, way, size, ONE_STEP, environment)
        seconds = workers.wait_for() - workers.started.begun
        return {"seconds": seconds, "cpu": cpu_seconds(tree.living(), with_ended_children=True) - before}


def _tests() -> dict[str, Sample]:
    with workshop("tests") as (tree, scratch):
        (scratch / "test_sum.py").write_text(TEST)
        argv = [sys.executable, "-m", "pytest", "-q", "--junitxml=results.xml", f"--basetemp={scratch / 'tmp'}"]
        run = tree.run(argv, scratch, Path(os.devnull), TESTS * 10.0)
        if run.exit_code != 0:
            raise StuckError(f"pytest ended with {run.exit_code}")
        tests = ET.parse(scratch / "results.xml").iter("testcase")
        first, *later = [float(test.attrib["time"]) for test in tests]
        return {
            FIRST: {"seconds": first, "left": float(run.left_running)},
            LATER: {"seconds": sum(later) / len(later), "left": float(run.left_running)},
        }


def section(found: dict[str, Found]) -> list[str]:
    """Return the lines of the document."""
    starts = {name: one for name, one in found.items() if name != "tests"}
    tables = []
    for name, unit in {"seconds": "s", "cpu": "CPU s"}.items():
        head = ["until the first step", *(cell for start in starts for cell in (f"{start}, {unit}", "ratio"))]
        tables += [*table(head, [[way, *measured(starts.values(), way, SCRIPT, name)] for way in WAYS]), ""]
    tests = found["tests"]
    rows = [[name, *measured([tests], name, FIRST, "seconds")] for name in (FIRST, LATER)]
    return [*tables, *table(["tests with pytest", "s", "ratio"], rows), "", *remarks(found)]


PART = Part("Warm starts", TEXT, measure, section)
