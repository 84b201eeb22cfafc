"""The job as its journal tells it: the same events through the same `step` give the same job.

Pure: records are what `journal.read` gives.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from tflaunch.job import events, supervisor
from tflaunch.job.actions import Action
from tflaunch.job.events import Event
from tflaunch.job.states import Job
from tflaunch.plan import plan_forms


class Happening(NamedTuple):
    """One step: the event, when it happened, the actions that followed, and the job after it."""

    event: Event
    now: float
    actions: list[Action]
    job: Job


def first_job(record: dict[str, Any]) -> Job:
    """Return the job that a journal's first record begins.

    Raises:
        KeyError, TypeError, ValueError: it is no such record.
    """
    if record["kind"] != "plan":
        raise ValueError(f"the journal begins with {record['kind']!r} instead of the plan")
    return supervisor.begin(record["run"], plan_forms.from_json(record["plan"]), record["now"])


def happenings(job: Job, records: Iterable[dict[str, Any]]) -> Iterator[Happening]:
    """Let happen again what the records after the first tell.

    Raises:
        KeyError, ValueError: a record is damaged.
    """
    for record in records:
        event = events.from_record(record)
        if event is not None:
            job, actions = supervisor.step(job, event, record["now"])
            yield Happening(event, record["now"], actions, job)


def fold(records: Iterable[dict[str, Any]]) -> Job:
    """Return the job after all records.

    Raises:
        KeyError, TypeError, ValueError: the journal is empty or damaged.
    """
    rest = iter(records)
    first = next(rest, None)
    if first is None:
        raise ValueError("the journal is empty")
    job = first_job(first)
    for happening in happenings(job, rest):
        job = happening.job
    return job
