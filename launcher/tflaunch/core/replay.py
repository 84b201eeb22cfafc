"""Rebuild a job from its journal: the same events give the same job.

Pure: records are what `journal.read_journal` returns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from tflaunch.core import event_records, step
from tflaunch.core.actions import Action
from tflaunch.core.annotations import Annotation, Annotations
from tflaunch.core.events import Event, TimePassed
from tflaunch.core.job_state import Job
from tflaunch.core.record_check import DAMAGES, DamagedRecordError, check_known, reason_of
from tflaunch.plan import serialize
from tflaunch.plan.model import Plan


class Transition(NamedTuple):
    """A step: event, time, actions and the job after it; or an annotation."""

    event: Event | Annotation
    now: float
    actions: list[Action]
    job: Job


def first_job(record: dict[str, Any]) -> Job:
    """Return the initial job from a journal's first record.

    Raises:
        DamagedRecordError: the record does not begin a job.
    """
    plan = recorded_plan(record)
    try:
        return step.begin_job(record["run"], plan, record["now"])
    except DAMAGES as error:
        raise DamagedRecordError(0, reason_of(error)) from None


def recorded_plan(record: dict[str, Any]) -> Plan:
    """Return the plan in a journal's first record.

    Raises:
        DamagedRecordError: the record has no plan, or a damaged one.
    """
    if record["kind"] != "plan":
        raise DamagedRecordError(0, f"the journal begins with {record['kind']!r} instead of the plan")
    try:
        return serialize.from_json(record["plan"])
    except ValueError as error:
        raise DamagedRecordError(0, str(error)) from None


def transitions(job: Job, records: Iterable[dict[str, Any]]) -> Iterator[Transition]:
    """Yield the steps that replay the records, and the annotations between them.

    Raises:
        DamagedRecordError: a record does not fit those before it.
    """
    told_at: float | None = None
    for record in records:
        try:
            event = event_records.from_record(record)
            now = record.get("now", told_at if event_records.is_action(record["kind"]) else None)
            if now is None:
                continue
            if event is None:  # 0.2.0 looked at deadlines at these, too, and at annotations
                event = TimePassed()
            told_at = now if isinstance(event, Annotation) else None
            check_known(job, event)
            job, actions = (job, []) if isinstance(event, Annotation) else step.step(job, event, now)
        except DAMAGES as error:
            raise DamagedRecordError(record["seq"], reason_of(error)) from None
        yield Transition(event, now, actions, job)


def annotations_in(records: Iterable[dict[str, Any]]) -> Annotations:
    """Return the annotations among these records."""
    known = Annotations()
    for record in records:
        if isinstance(annotation := event_records.from_record(record), Annotation):
            known = known.noted(annotation, record["now"])
    return known


def replay_job(records: Iterable[dict[str, Any]]) -> Job:
    """Return the job after all records.

    Raises:
        DamagedRecordError: the journal is empty or damaged.
    """
    rest = iter(records)
    first = next(rest, None)
    if first is None:
        raise DamagedRecordError(0, "the journal is empty")
    job = first_job(first)
    for transition in transitions(job, rest):
        job = transition.job
    return job
