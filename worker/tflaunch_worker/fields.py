"""Read typed fields of messages from other processes: each is checked once, where it arrives.

Every function returns a field of a message. It raises `ValueError` with the field's name if the field is missing, has
another type or is out of range.
"""

from __future__ import annotations

from typing import Any, Dict, List, Mapping

MAX_COUNT = 2**53
"""Maximum of counts, offsets and sizes: a float holds integers exactly up to here."""

LONGEST_TEXT = 4 * 1024 * 1024
"""Maximum number of characters of a text: arguments and variables of tasks can be long."""

MAX_TIME = 1e12
"""Maximum of monotonic times and durations, in seconds: 30,000 years."""


def integer(message: Mapping[str, Any], name: str, least: int = 0, most: int = MAX_COUNT) -> int:
    """Return an integer field from ``least`` to ``most``."""
    value = message.get(name)
    if type(value) is not int or not least <= value <= most:
        raise _wrong(name, f"an integer from {least} to {most}", value)
    return value


def number(message: Mapping[str, Any], name: str, least: float = -MAX_TIME, most: float = MAX_TIME) -> float:
    """Return a numeric field from ``least`` to ``most`` as a float."""
    value = message.get(name)
    if isinstance(value, (int, float)) and not isinstance(value, bool) and least <= value <= most:
        return float(value)  # NaN fails both comparisons
    raise _wrong(name, f"a number from {least:g} to {most:g}", value)


def text(message: Mapping[str, Any], name: str, longest: int = LONGEST_TEXT) -> str:
    """Return a text field of at most ``longest`` characters."""
    value = message.get(name)
    if type(value) is not str or len(value) > longest:
        raise _wrong(name, f"text of at most {longest} characters", value)
    return value


def flag(message: Mapping[str, Any], name: str) -> bool:
    """Return a Boolean field."""
    value = message.get(name)
    if type(value) is not bool:
        raise _wrong(name, "true or false", value)
    return value


def items(message: Mapping[str, Any], name: str) -> List[Any]:
    """Return a list field."""
    value = message.get(name)
    if type(value) is not list:
        raise _wrong(name, "a list", value)
    return value


def texts(message: Mapping[str, Any], name: str) -> List[str]:
    """Return a field that is a list of texts."""
    value = items(message, name)
    if not all(type(item) is str for item in value):
        raise _wrong(name, "a list of texts", value)
    return value


def mapping(message: Mapping[str, Any], name: str) -> Dict[str, Any]:
    """Return a field that is an object."""
    value = message.get(name)
    if type(value) is not dict:
        raise _wrong(name, "an object", value)
    return value


def _wrong(name: str, wanted: str, value: object) -> ValueError:
    return ValueError(f"{name!r} must be {wanted}, not {repr(value)[:60]}")
