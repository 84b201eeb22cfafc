"""Measure what it costs to find out who is late, while TensorFlow workers train on this machine."""

import os
import time

from parts import Bench, Part, own_directory
from process_tree import ProcessTree, command_of, workshop
from rounds import Found, Sample, figures, median, remarks, table

from training import PRELOAD, Workers

COUNTS = (2, 4)
WINDOW = 20.0  # seconds per round
STEPS = 30  # with output, before the first round; meanwhile the agent adapts the rate of its samples
NAME = "agent"
QUIET_STEPS = f"""
for _ in range({STEPS}):
    train()
    time.sleep(0.1)
while True:
    weights.assign_sub(0.01 * reduced_gradient())
    time.sleep(0.1)
"""
TEXT = f"""\
N MultiWorkerMirrored workers train in steps of about a tenth of a second; a round is {WINDOW:g} s. Meanwhile the agent
samples the connections between them, and what the kernel gives them; they print nothing. The figure is all CPU time of
the agent: as a share of one core, and as a share of the machine, of which a step has all cores.
"""


def measure(bench: Bench) -> dict[str, Found]:
    """Let workers train, and measure the agent, for each number of workers."""
    return {str(count): Found({NAME: _rounds(bench.repeats, count)}, {}) for count in COUNTS}


def _rounds(repeats: int, count: int) -> list[Sample]:
    with workshop("watching") as (tree, scratch):
        workers = Workers(tree, own_directory(scratch), PRELOAD, count, QUIET_STEPS)
        workers.wait_for(steps=STEPS)
        agent = _agent(tree)
        return [_window(agent) for _ in range(repeats)]


def _agent(tree: ProcessTree) -> int:
    """Return the agent; the guard, its parent, has the same command line, and an earlier pid."""
    return max(pid for pid in tree.living() if any("tflaunch-agent" in word for word in command_of(pid)))


def _window(agent: int) -> Sample:
    clock = (~agent << 3) | 2  # its CPU time in nanoseconds: see clock_getcpuclockid(3)
    began, used = time.monotonic(), time.clock_gettime(clock)
    time.sleep(WINDOW)
    share = 100 * (time.clock_gettime(clock) - used) / (time.monotonic() - began)
    return {"percent_of_core": share, "percent_of_machine": share / len(os.sched_getaffinity(0))}


def section(found: dict[str, Found]) -> list[str]:
    """Return the lines of the document."""
    rows = [
        [count, *figures(median(one, NAME, what) for what in ("percent_of_core", "percent_of_machine"))]
        for count, one in found.items()
    ]
    return [*table(["workers", "CPU, % of a core", "CPU, % of the machine"], rows), "", *remarks(found)]


PART = Part("Watching who is late", TEXT, measure, section)
