"""Read and write records: named tuples with types and bounds as annotations. Pure.

A field that is missing has its default, or is None if it may be; unknown fields are ignored. A record may also be a
list of its first fields, in their order. The bounds of an annotated type are a `Range`, a `Line`, or a function that
checks the value of a field, given its name; keys of mappings have bounds, too. A class that is written as something
simpler has methods `read_json` and `write_json`.
"""

import functools
import types
import typing
from collections.abc import Mapping
from enum import Enum
from typing import Annotated, Any, NamedTuple, TypeVar

from tflaunch_worker import schema
from tflaunch_worker.schema import Check, Schema

Record = TypeVar("Record")


class Range(NamedTuple):
    """Range of a numeric field, inclusive."""

    least: float
    most: float


class Line(NamedTuple):
    """A text of one line of at most ``longest`` characters, safe for a terminal."""

    longest: int


def read_record(kind: type[Record], data: object) -> Record:
    """Return the record of a kind in data that was received or stored.

    Raises:
        ValueError: it is not an object, or a field is missing, of the wrong type or out of range.
    """
    named: Any = kind
    checks = _schema(named)
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
def _schema(kind: Any) -> Schema:
    """Return the check of each field of a kind of record, by name."""
    hints = typing.get_type_hints(kind, include_extras=True)
    return {name: check_of(declared) for name, declared in hints.items()}


@functools.cache
def check_of(declared: Any) -> Check:
    """Return a check for a declared type; it takes a field's name and value."""
    origin, arguments = typing.get_origin(declared), typing.get_args(declared)
    if origin is Annotated:
        kind, limit = arguments
        if isinstance(limit, Line):
            return schema.line(limit.longest)
        return _number(kind, limit) if isinstance(limit, Range) else typing.cast("Check", limit)
    if origin in (dict, Mapping):
        return schema.mapping_of(check_of(arguments[0]), check_of(arguments[1]))
    if origin is tuple:
        of_each = [check_of(item) for item in arguments if item is not ...]
        check_list = schema.list_of(*of_each) if arguments[-1] is ... else schema.row(*of_each)
        return lambda name, value: tuple(check_list(name, value))
    if origin in (types.UnionType, typing.Union) and type(None) in arguments:
        return schema.optional(check_of(next(each for each in arguments if each is not type(None))))
    if hasattr(declared, "read_json"):
        return typing.cast("Check", declared.read_json)
    if hasattr(declared, "_fields"):
        return lambda _, value: read_record(declared, value)
    return schema.flag if declared is bool else _plainly(declared)


def _number(kind: Any, limit: Range) -> Check:
    if kind is int:
        return schema.integer(*limit)
    check_number = schema.number(*limit)
    if kind is float:
        return check_number

    def check(name: str, value: Any) -> int | float:  # of `int | float`, an integer stays one
        number: float = check_number(name, value)
        return value if type(value) is int else number

    return check


def _plainly(kind: type) -> Check:
    kinds = (int, float) if kind is float else (kind,)

    def check(name: str, value: Any) -> Any:
        if type(value) not in kinds:
            raise schema.refuse(name, f"of type {kind.__name__}", value)
        return value

    return check
