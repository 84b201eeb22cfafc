"""Validate the records of a journal before they are replayed. Pure."""

from __future__ import annotations

from typing import Any

from tflaunch.core import event_records
from tflaunch.core.annotations import Annotation
from tflaunch.core.events import Event, read_metrics
from tflaunch.core.job_state import Job
from tflaunch_worker.printable import printable

_LATEST = 2.0**40  # seconds: beyond any clock, yet safe for arithmetic with times
_NUMBER_FIELDS = {"ended": ("exit_code",), "supervisor": ("number",)}
_MAX_CODE, _MAX_SIGNAL = 255, 64
_ENDINGS = ("succeeded", "failed", "stopped", "interrupted")  # see `explain.status.state_of_run`

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
        raise DamagedRecordError(number, reason_of(error)) from None
    checked: dict[str, Any] = record
    return checked


def reason_of(error: Exception) -> str:
    """Return the reason in an exception, for use in a message."""
    if isinstance(error, DamagedRecordError):
        return error.reason
    return f"{error} is unknown or missing" if isinstance(error, LookupError) else str(error) or type(error).__name__


def _check(record: Any, number: int) -> None:
    _require(isinstance(record, dict), "is not an object")
    kind = record.get("kind")
    _require(isinstance(kind, str), "has no kind")
    _require(type(record.get("seq")) is int and record["seq"] == number, f"its seq is not {number}")
    _require(_is_time(record.get("time")), "has no time")
    if "now" in record or kind == "plan":
        _require(_is_time(record.get("now")), "has a wrong time")
    if kind == "plan":
        form = record.get("format", 1)
        _require(type(form) is int and 0 < form <= _MAX_CODE, "has a wrong format")
        if form != JOURNAL_FORMAT:
            raise OtherFormatError(form)
        _require(all(isinstance(record.get(name), str) for name in ("run", "logs")), "names no run or no logs")
        protocol = record.get("protocol", 1)
        _require(type(protocol) is int and 0 < protocol <= _MAX_CODE, "has a wrong protocol")
        _require(isinstance(record.get("version", ""), str), "has a wrong version")
        _require("\0" not in record["logs"] and isinstance(record.get("plan"), dict), "holds no plan")
    for name in _NUMBER_FIELDS.get(kind, ()):
        _require(type(record.get(name)) is int and 0 <= record[name] <= _MAX_CODE, f"has a wrong {name}")
    _require(kind != "notified" or isinstance(record.get("name"), str), "names no occurrence")
    losses = record.get("losses", [])
    _require(isinstance(losses, list) and all(isinstance(text, str) for text in losses), "has wrong losses")
    if kind == "ended":
        _require(record.get("state") in (None, *_ENDINGS), "has a wrong state")
        step = record.get("step")
        _require(step is None or (type(step) is int and step >= 0), "has a wrong step")
        read_metrics("metrics", record.get("metrics"))
    _require("now" in record or event_records.from_record(record) is None, "has no time of the supervisor's")


def check_known(job: Job, event: Event | Annotation) -> None:
    """Check that an event's host and task belong to the job.

    Raises:
        ValueError: the host or the task is unknown.
    """
    host, task = getattr(event, "host", None), getattr(event, "task", "")
    _require(host is None or host in job.hosts, f"is about host {host!r}, which the plan does not have")
    _require(not task or task in job.tasks, f"is about task {task!r}, which the plan does not have")


def _is_time(value: Any) -> bool:
    return _is_number(value) and abs(value) <= _LATEST


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _require(is_so: bool, message: str) -> None:
    if not is_so:
        raise ValueError(message)
