"""Read and write records: named tuples whose annotations are the types and bounds of their fields. Pure.

A field that is missing has its default, or is None if it may be; unknown fields are ignored. A record may also be a
list of its first fields, in their order. The bounds of an annotated type are a `Range`, a `Line`, or a function that
checks the value of a field, given its name; keys of mappings have bounds, too. A class that is written as something
simpler has methods `read_json` and `write_json`.
"""

from __future__ import annotations

import functools
import types
import typing
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Annotated, Any, NamedTuple, TypeVar

from tflaunch_worker.printable import printable

Record = TypeVar("Record")


class Range(NamedTuple):
    """Range of a numeric field, inclusive."""

    least: float
    most: float


class Line(NamedTuple):
    """Text field of one line that is safe to print on a terminal, at most ``longest`` characters long."""

    longest: int


_Check = Callable[[str, Any], Any]
"""Takes a field's name and value, returns the value as stored in the record; raises ValueError."""


def read_record(kind: type[Record], data: object) -> Record:
    """Return the record of a kind in data that was received or stored.

    Raises:
        ValueError: it is no object, or a field is missing, of the wrong type or out of range.
    """
    named: Any = kind
    checks = _checks(named)
    if type(data) is list and len(data) <= len(checks):
        data = dict(zip(checks, data, strict=False))
    if not isinstance(data, Mapping):
        problem = f"a {kind.__name__} must be an object, not {repr(data)[:60]}"
        raise ValueError(problem)  # noqa: TRY004 - received data is a value, not a programming error
    missing = named._field_defaults.keys() - data.keys()  # an earlier version wrote fewer fields
    return kind(**{name: check(name, data.get(name)) for name, check in checks.items() if name not in missing})


def as_json(value: Any) -> Any:
    """Return a record, with the records in it, as JSON that `read_record` reads."""
    if hasattr(value, "write_json"):
        return value.write_json()
    if hasattr(value, "_asdict"):
        return {name: as_json(field) for name, field in value._asdict().items()}
    if isinstance(value, Mapping):
        return {name: as_json(field) for name, field in value.items()}
    if isinstance(value, Enum):
        return value.value
    return [as_json(item) for item in value] if isinstance(value, (tuple, list)) else value


@functools.cache
def _checks(kind: Any) -> Mapping[str, _Check]:
    """Return the check of each field of a kind of record, by name."""
    hints = typing.get_type_hints(kind, include_extras=True)
    return {name: check_of(declared) for name, declared in hints.items()}


@functools.cache
def check_of(declared: Any) -> _Check:
    """Return the function that checks a value, given a field's name, for a declared type."""
    origin, arguments = typing.get_origin(declared), typing.get_args(declared)
    if origin is Annotated:
        kind, limit = arguments
        if isinstance(limit, Line):
            return _line(limit)
        return _number(kind, limit) if isinstance(limit, Range) else typing.cast("_Check", limit)
    if origin in (dict, Mapping):
        return _mapping(check_of(arguments[0]), check_of(arguments[1]))
    if origin is tuple:
        return _items([check_of(item) for item in arguments if item is not ...], is_long=arguments[-1] is ...)
    if origin in (types.UnionType, typing.Union) and type(None) in arguments:
        return _optional(check_of(next(each for each in arguments if each is not type(None))))
    if hasattr(declared, "read_json"):
        return typing.cast("_Check", declared.read_json)
    if hasattr(declared, "_fields"):
        return lambda _, value: read_record(declared, value)
    return _plainly(declared)


def _line(limit: Line) -> _Check:
    def check(name: str, value: Any) -> str:
        if type(value) is not str:
            raise ValueError(f"field {name!r} must be text")
        return printable(value, limit.longest)

    return check


def _number(kind: Any, limit: Range) -> _Check:
    kinds = (int,) if kind is int else (int, float)

    def check(name: str, value: Any) -> Any:
        if type(value) not in kinds or not limit.least <= value <= limit.most:  # rejects NaN too
            kind_name = "an integer" if kind is int else "a number"
            raise ValueError(f"field {name!r} must be {kind_name} from {limit.least:.0f} to {limit.most:.0f}")
        return kind(value) if kind in kinds else value  # of `int | float`, an integer stays one

    return check


def _mapping(check_key: _Check, check_value: _Check) -> _Check:
    def check(name: str, value: Any) -> dict[str, Any]:
        if type(value) is not dict:
            raise ValueError(f"field {name!r} must be an object")
        return {check_key(name, key): check_value(name, item) for key, item in value.items()}

    return check


def _items(checks: list[_Check], *, is_long: bool) -> _Check:
    def check(name: str, value: Any) -> tuple[Any, ...]:
        if type(value) is not list or (not is_long and len(value) != len(checks)):
            raise ValueError(f"field {name!r} must be a list{'' if is_long else f' of {len(checks)}'}")
        of_each = checks * len(value) if is_long else checks
        return tuple(check_item(name, item) for check_item, item in zip(of_each, value, strict=True))

    return check


def _optional(check_value: _Check) -> _Check:
    return lambda name, value: None if value is None else check_value(name, value)


def _plainly(kind: type) -> _Check:
    kinds = (int, float) if kind is float else (kind,)

    def check(name: str, value: Any) -> Any:
        if type(value) not in kinds:
            raise ValueError(f"field {name!r} must be of type {kind.__name__}")
        return value

    return check
