"""Measure the cost of a growing job in the supervisor's core, with simulated events, no processes."""

import itertools
import json
import time
import tracemalloc
from collections.abc import Iterable
from pathlib import Path

from parts import Bench, Part, own_directory
from process_tree import workshop
from rounds import Found, Sample, figures, in_turn, median, ratio, table

from tflaunch.clusterspec import load
from tflaunch.core import step, time_limits
from tflaunch.core.actions import Action, HoldPorts, LookUpNames, ProbePeers, StartTask
from tflaunch.core.events import (
    Event,
    HostJoined,
    NamesResolved,
    PeersProbed,
    PortOpened,
    PortsHeld,
    TaskExited,
    TaskGone,
    TaskStarted,
)
from tflaunch.discovery import local_machine
from tflaunch.explain.messages import Logs, messages_about
from tflaunch.plan import planner

SIZES = (100, 1_000, 10_000)
PER_HOST = 8
NAME = "core"
LOGS = Logs("", lambda *_: [])
TEXT = f"""\
A job of mirrored workers, {PER_HOST} on a host, from its spec to its end, in the supervisor's core alone: each
event, what becomes of the job, the next deadline and the news of it. Events are those of a task's life: it
starts, its port opens, it exits, it is gone. Memory is what the job holds when all tasks are started;
seconds are of the processor.
"""


class _Job:
    """A job that receives every event that hosts would report."""

    def __init__(self, directory: Path, size: int) -> None:
        spec = directory / "growth.json"
        hosts = [f"h{number // PER_HOST}" for number in range(size)]
        spec.write_text(json.dumps({"cluster": {"worker": hosts}, "command": ["python", "train.py"]}))
        self.plan = planner.make_plan(load.load_spec(spec), directory, local_machine.describe_machine([]))
        self.now = 0.0
        self.job = step.begin_job("growth", self.plan, self.now)

    def happens(self, event: Event) -> list[Action]:
        """Apply an event to the core, and produce its messages."""
        self.now += 1e-6
        before = self.job
        self.job, actions = step.step(before, event, self.now)
        time_limits.next_deadline(self.job)
        messages_about(before, event, self.job, self.now, LOGS)
        return actions

    def prepare(self) -> list[StartTask]:
        """Complete the preparation, and return the tasks to start."""
        waiting: list[Action] = [action for host in self.plan.hosts for action in self.happens(HostJoined(host.host))]
        started = []
        while waiting:
            action = waiting.pop()
            match action:
                case HoldPorts():
                    waiting += self.happens(PortsHeld(action.host, dict.fromkeys(action.ports, 2222)))
                case LookUpNames():
                    waiting += self.happens(NamesResolved(action.host, dict.fromkeys(action.names, "10.0.0.9")))
                case ProbePeers():
                    waiting += self.happens(PeersProbed(action.host, {}))
                case StartTask():
                    started.append(action)
        return started

    def live(self, started: Iterable[StartTask]) -> int:
        """Let the tasks run and end; return the number of events."""
        tasks = [(action.host, action.task, action.attempt) for action in started]
        events: list[Event] = [TaskStarted(*task, 1, 0.0) for task in tasks]
        events += [PortOpened(*task) for task in tasks]
        events += [event for task in tasks for event in (TaskExited(*task, 0, None, 0.0), TaskGone(*task))]
        for event in events:
            self.happens(event)
        return len(events)


def measure(bench: Bench) -> dict[str, Found]:
    """Measure jobs of all sizes."""
    found = {}
    with workshop("growth") as (_, scratch):
        for size in SIZES:

            def one(_: str, size: int = size) -> Sample:
                return _one(own_directory(scratch), size)

            found[str(size)] = Found(in_turn(f"growth, {size} tasks", (NAME,), bench.repeats, one), {})
            found[str(size)].rounds[NAME][0]["mib"] = _memory(own_directory(scratch), size)
    return found


def _one(directory: Path, size: int) -> Sample:
    marks = [time.process_time()]
    job = _Job(directory, size)
    marks.append(time.process_time())
    started = job.prepare()
    marks.append(time.process_time())
    count = job.live(started)
    marks.append(time.process_time())
    planned, prepared, lived = (later - earlier for earlier, later in itertools.pairwise(marks))
    return {"plan": planned, "prepare": prepared, "event": 1e6 * lived / count}


def _memory(directory: Path, size: int) -> float:
    """Return the MiB that a job holds when all its tasks are started."""
    tracemalloc.start()
    try:
        job = _Job(directory, size)
        job.prepare()
        return tracemalloc.get_traced_memory()[0] / 2**20
    finally:
        tracemalloc.stop()


def section(found: dict[str, Found]) -> list[str]:
    """Return the lines of the document."""
    rows = []
    smallest = next(iter(found.values()))
    for size, one in found.items():
        beside = Found({NAME: one.rounds[NAME], "smallest": smallest.rounds[NAME]}, {})
        cells = figures([*(median(one, NAME, what) for what in ("plan", "prepare", "event"))])
        rows.append([size, *cells, *figures([ratio(beside, NAME, "smallest", "event"), median(one, NAME, "mib")])])
    head = ["tasks", "spec to plan, s", "hosts join to tasks start, s", "µs per event", "ratio", "memory, MiB"]
    return table(head, rows)


PART = Part("Growth", TEXT, measure, section)
