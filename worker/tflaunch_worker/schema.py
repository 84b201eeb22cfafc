"""Checks of the fields of records from other processes, once, on arrival.

A *check* takes a field's name and value, and returns the value as it is kept. It raises `ValueError`, with the name,
for any other. A *schema* maps the names of fields to their checks: orders and calls declare theirs (`agent.orders`, and
the ``CALLS`` of features), and the launcher's `records` makes them from the annotations of classes.
"""

from __future__ import annotations

from typing import Any, Callable, Mapping

from tflaunch_worker.readable import printable

Check = Callable[[str, Any], Any]
Schema = Mapping[str, Check]

MAX_COUNT = 2**53
"""Maximum of counts, offsets and sizes: a float holds integers exactly up to here."""

LONGEST_TEXT = 4 * 1024 * 1024
"""Maximum number of characters of a text: arguments and variables of tasks can be long."""

MAX_TIME = 1e12
"""Maximum of monotonic times and durations, in seconds: 30,000 years."""


def check_fields(data: Mapping[str, Any], schema: Schema) -> dict[str, Any]:
    """Return the checked fields of a record, and no others, or raise `ValueError`."""
    return {name: check(name, data.get(name)) for name, check in schema.items()}


def refuse(name: str, wanted: str, value: object) -> ValueError:
    """Return the error for a field that must be something else."""
    return ValueError(f"{name!r} must be {wanted}, not {repr(value)[:60]}")


def integer(least: float = 0, most: float = MAX_COUNT) -> Check:
    """Return the check of an integer in a range."""

    def check(name: str, value: Any) -> int:
        if type(value) is not int or not least <= value <= most:
            raise refuse(name, f"an integer from {least:.0f} to {most:.0f}", value)
        return value

    return check


def number(least: float = -MAX_TIME, most: float = MAX_TIME) -> Check:
    """Return the check of a number in a range, which becomes a float."""

    def check(name: str, value: Any) -> float:
        if type(value) not in (int, float) or not least <= value <= most:  # NaN fails both comparisons
            raise refuse(name, f"a number from {least:g} to {most:g}", value)
        return float(value)

    return check


def text(longest: int = LONGEST_TEXT) -> Check:
    """Return the check of a text."""

    def check(name: str, value: Any) -> str:
        if type(value) is not str or len(value) > longest:
            raise refuse(name, f"text of at most {longest} characters", value)
        return value

    return check


def line(longest: int) -> Check:
    """Return the check of a text, which becomes one line safe for a terminal."""
    check_text = text()
    return lambda name, value: printable(check_text(name, value), longest)


def flag(name: str, value: Any) -> bool:
    """Check a Boolean."""
    if type(value) is not bool:
        raise refuse(name, "true or false", value)
    return value


def list_of(check_item: Check) -> Check:
    """Return the check of a list."""

    def check(name: str, value: Any) -> list[Any]:
        if type(value) is not list:
            raise refuse(name, "a list", value)
        return [check_item(name, item) for item in value]

    return check


def row(*columns: Check) -> Check:
    """Return the check of a list with an item for each of these checks."""

    def check(name: str, value: Any) -> list[Any]:
        if type(value) is not list or len(value) != len(columns):
            raise refuse(name, f"a list of {len(columns)}", value)
        return [columns[place](name, item) for place, item in enumerate(value)]

    return check


def mapping_of(check_key: Check, check_value: Check) -> Check:
    """Return the check of an object whose keys are names, of tasks for example."""

    def check(name: str, value: Any) -> dict[str, Any]:
        if type(value) is not dict:
            raise refuse(name, "an object", value)
        return {check_key(name, key): check_value(name, item) for key, item in value.items()}

    return check


def record(**schema: Check) -> Check:
    """Return the check of an object with exactly these fields."""

    def check(name: str, value: Any) -> dict[str, Any]:
        if type(value) is not dict or value.keys() != schema.keys():
            raise refuse(name, f"an object of {', '.join(schema)}", value)
        return check_fields(value, schema)

    return check


def optional(check: Check) -> Check:
    """Return the check of a field that may be missing, or null."""
    return lambda name, value: None if value is None else check(name, value)
