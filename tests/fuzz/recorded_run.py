"""The directory of a run, as its supervisor writes it."""

import json
import struct
from collections.abc import Iterator
from pathlib import Path

from support.job_history import HERE, parameter_server
from tflaunch.core import step
from tflaunch.core.events import Event, HostJoined, PortOpened, PortsHeld, TaskExited, TaskGone, TaskStarted
from tflaunch.plan import serialize
from tflaunch.store.journal import Journal
from tflaunch.store.run_dir import RunDirectory


def happened(has_ended: bool) -> Iterator[tuple[float, Event]]:
    """Return the events of a run: a worker failed, all restarted, and the run continued or ended."""
    tasks = [task.task for task in parameter_server().job.plan.tasks]
    yield 0.0, HostJoined(HERE)
    for attempt in range(2):
        now = 10.0 * attempt
        yield now + 1, PortsHeld(HERE, {task: 10_000 + number for number, task in enumerate(tasks)})
        for task in tasks:
            yield now + 2, TaskStarted(HERE, task, attempt, 100 + attempt, now + 2)
            yield now + 3, PortOpened(HERE, task, attempt)
        if attempt == 0 or has_ended:
            yield now + 4, TaskExited(HERE, "chief:0", attempt, 1 - attempt, None, now + 4)
            yield now + 4, TaskGone(HERE, "chief:0", attempt)
            for task in tasks[1:]:
                yield now + 5, TaskExited(HERE, task, attempt, None, 15, now + 5, was_told=True)
                yield now + 5, TaskGone(HERE, task, attempt)


def record(has_ended: bool) -> Path:
    """Write the directory of a run below TFLAUNCH_HOME; return its path."""
    plan = parameter_server().job.plan
    plan = plan._replace(timeouts=plan.timeouts._replace(lease=30.0))
    directory = RunDirectory("job")
    kept = serialize.as_json(plan)
    directory.write_plan(kept)
    writer = Journal(directory)
    job = step.begin_job(directory.run, plan, 0.0)
    writer.record_plan(directory, kept, 0.0)
    for now, event in happened(has_ended):
        job, actions = step.step(job, event, now)
        writer.record(event, actions, now)
    if has_ended:
        writer.record_end(0, ["a log: 5 bytes could not be written"], "succeeded")
    writer.close()
    marks = [["worker:0", 0, 0, 0], ["worker:0", 1, 24, 0], ["chief:0", 0, 0, 0]]
    directory.marks.write_text("".join(json.dumps(mark) + "\n" for mark in marks))
    (directory.logs / "worker-0.log").write_bytes(b"one\ntwo\nthree\nfour\nfive\n" + b"six\nseven\n" * 50 + b"last")
    directory.times.mkdir()
    (directory.times / "worker-0").write_bytes(b"".join(struct.pack("!dQ", 1.7e9 + i, 4 * i) for i in range(100)))
    return directory.path
