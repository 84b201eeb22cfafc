"""Rebuild a job from its journal: the same events give the same job.

Each record is checked first, since a journal may be damaged. Pure: records are what `journal.read_journal` returns.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tflaunch.core import event_records, step
from tflaunch.core.actions import Action
from tflaunch.core.annotations import NOTHING, Annotation, Annotations
from tflaunch.core.events import Event, TimePassed, read_metrics
from tflaunch.core.job_state import Job
from tflaunch.plan import serialize
from tflaunch.plan.model import Plan
from tflaunch_worker import schema
from tflaunch_worker.agent import orders
from tflaunch_worker.readable import printable

_LATEST = 2.0**40  # seconds: beyond any clock, yet safe for arithmetic with times
_MAX_CODE = 255
_ENDINGS = ("succeeded", "failed", "stopped", "interrupted")  # see `explain.status.state_of_run`


def _ending(name: str, value: Any) -> Any:
    if value not in (None, *_ENDINGS):
        raise schema.refuse(name, " or ".join(_ENDINGS), value)
    return value


_time, _code, _text = schema.number(-_LATEST, _LATEST), schema.integer(0, _MAX_CODE), schema.text()
_object = schema.mapping_of(_text, lambda _, value: value)
_EVERY: schema.Schema = {"kind": _text, "time": _time, "now": schema.optional(_time)}
_OF_KIND: Mapping[str, schema.Schema] = {
    "plan": {
        "now": _time, "run": _text, "logs": orders.word, "plan": _object,
        "protocol": schema.optional(_code), "version": schema.optional(_text),
    },
    "supervisor": {"number": _code},
    "notified": {"name": _text},
    "ended": {
        "exit_code": _code, "state": _ending, "losses": schema.optional(schema.list_of(_text)),
        "step": schema.optional(schema.integer()), "metrics": read_metrics,
    },
}  # fmt: skip
"""The fields of all records, and those of records of a kind that have no class."""

JOURNAL_FORMAT = 2
"""Version of the records, named in the first one. Journals without a format are those of tflaunch 0.1."""

DAMAGES = (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError)
"""Exceptions that damaged records of a journal or plan cause in the code that reads them."""


class DamagedRecordError(ValueError):
    """Error for a record that no supervisor can write: its number, from 0, and reason."""

    def __init__(self, number: int, reason: str) -> None:
        self.number = number
        self.reason = printable(reason)  # it may quote the record
        super().__init__(f"record {number}: {self.reason}")


class OtherFormatError(DamagedRecordError):
    """Error for a journal of another version of tflaunch, with format ``form``."""

    def __init__(self, form: int) -> None:
        super().__init__(0, f"the journal has format {form}, not {JOURNAL_FORMAT}")
        self.form = form


def check_record(record: Any, number: int) -> dict[str, Any]:
    """Return the record if each of its fields is valid.

    ``number`` is its position in the journal, from 0.

    Raises:
        OtherFormatError: another version of tflaunch wrote it.
        DamagedRecordError: a field is missing or wrong.
    """
    try:
        _check(record, number)
    except DamagedRecordError:
        raise
    except DAMAGES as error:
        raise DamagedRecordError(number, _reason_of(error)) from None
    return dict(record)


def _reason_of(error: Exception) -> str:
    """Return the reason in an exception, for use in a message."""
    return f"{error} is unknown or missing" if isinstance(error, LookupError) else str(error) or type(error).__name__


def _check(record: Any, number: int) -> None:
    if not isinstance(record, dict):
        raise ValueError("is not an object")  # noqa: TRY004 - what was stored is a value
    schema.check_fields(record, {**_EVERY, "seq": schema.integer(number, number)})
    kind = record["kind"]
    form = schema.integer(1, _MAX_CODE)("format", record.get("format", 1))
    if kind == "plan" and form != JOURNAL_FORMAT:
        raise OtherFormatError(form)
    schema.check_fields(record, _OF_KIND.get(kind, {}))
    if record.get("now") is None and event_records.from_record(record) is not None:
        raise ValueError("has no time of the supervisor's")


def _check_known(job: Job, event: Event | Annotation) -> None:
    """Raise ValueError if the job does not have the host or task of an event."""
    host, task = getattr(event, "host", None), getattr(event, "task", "")
    if host is not None and host not in job.hosts:
        raise ValueError(f"is about host {host!r}, which the plan does not have")
    if task and task not in job.tasks:
        raise ValueError(f"is about task {task!r}, which the plan does not have")


class Transition(NamedTuple):
    """A step or annotation: job before, event, time, actions, and job after.

    ``known``: what annotations had told before.
    """

    before: Job
    event: Event | Annotation
    now: float
    actions: list[Action]
    job: Job
    known: Annotations


def first_job(record: dict[str, Any]) -> Job:
    """Return the initial job from a journal's first record; raises as `recorded_plan`."""
    plan = recorded_plan(record)
    try:
        return step.begin_job(record["run"], plan, record["now"])
    except DAMAGES as error:
        raise DamagedRecordError(0, _reason_of(error)) from None


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


def transitions(job: Job, records: Iterable[dict[str, Any]], known: Annotations = NOTHING) -> Iterator[Transition]:
    """Yield the steps that replay the records, and the annotations between them.

    Raises:
        DamagedRecordError: a record does not fit those before it.
    """
    told_at: float | None = None
    for record in records:
        try:
            event = event_records.from_record(record)
            now = record.get("now", told_at if record["kind"] in event_records.ACTIONS else None)
            if now is None:
                continue
            if event is None:  # 0.2.0 looked at deadlines at these, too, and at annotations
                event = TimePassed()
            told_at = now if isinstance(event, Annotation) else None
            _check_known(job, event)
            before, (job, actions) = job, (job, []) if isinstance(event, Annotation) else step.step(job, event, now)
        except DAMAGES as error:
            raise DamagedRecordError(record["seq"], _reason_of(error)) from None
        yield Transition(before, event, now, actions, job, known)
        known = known.noted(event, now)


def annotations_in(records: Iterable[dict[str, Any]]) -> Annotations:
    """Return the annotations among these records."""
    annotations = NOTHING
    for record in records:
        if isinstance(annotation := event_records.from_record(record), Annotation):
            annotations = annotations.noted(annotation, record["now"])
    return annotations


def replay_job(records: Sequence[dict[str, Any]]) -> Job:
    """Return the job after one or more records; raises as `transitions`."""
    job = first_job(records[0])
    for transition in transitions(job, records[1:]):
        job = transition.job
    return job
