"""Records of any kind, made from the types and bounds of their fields (`tflaunch.records`)."""

import random
import types
import typing
from collections.abc import Mapping
from typing import Annotated, Any

from tflaunch.core.event_records import kind_of
from tflaunch.core.events import NEEDS, read_metrics, read_need
from tflaunch.records import Line, Range

_TASKS = ("worker:0", "worker:1", "worker:2")
_TEXTS = ("", "a", "b", "10.0.0.9", "no room", "code")
_METRICS = ("loss", "", "a" * 100, "\x1b[2J", "\u202e", "__proto__", "\udcff")
_NAMED = {"task": _TASKS, "host": ("a", "b"), "source": ("10.0.0.9", "::1"), "addresses": ("", "10.0.0.1 ::1")}
"""Fields whose texts name something, so that the record says something about the run."""


def any_record(kind: type[Any], chance: random.Random) -> dict[str, Any]:
    """Return a record of a kind, as it is sent or stored."""
    hints = typing.get_type_hints(kind, include_extras=True)
    fields = {name: _any_field(name, declared, chance) for name, declared in hints.items()}
    left_out = [name for name in getattr(kind, "_field_defaults", {}) if chance.random() < 0.3]
    return {"kind": kind_of(kind), **{name: value for name, value in fields.items() if name not in left_out}}


def _any_field(name: str, declared: Any, chance: random.Random) -> Any:
    origin, arguments = typing.get_origin(declared), typing.get_args(declared)
    if origin is Annotated:
        return _within(name, arguments[1], arguments[0], chance)
    if origin in (types.UnionType, typing.Union):
        return _any_field(name, chance.choice(arguments), chance)
    if origin in (dict, Mapping):
        return {task: _any_field(name, arguments[1], chance) for task in _TASKS[: chance.randrange(4)]}
    if origin is tuple:
        return [_any_field(name, arguments[0], chance) for _ in range(chance.randrange(3))]
    if declared is bool:
        return chance.random() < 0.5
    return None if declared is type(None) else chance.choice(_NAMED.get(name, _TASKS if name == "tasks" else _TEXTS))


def _within(name: str, limit: object, kind: type, chance: random.Random) -> Any:
    """Return a value within a limit: often a small one, sometimes one at the edge."""
    if isinstance(limit, Range):
        value = chance.choice((limit.least, limit.most, max(limit.least, 0), max(limit.least, 1), max(limit.least, 2)))
        return kind(value)
    if limit is read_metrics:
        return {chance.choice(_METRICS): chance.choice((0, 0.5, -1e300, None)) for _ in range(chance.randrange(30))}
    if limit is read_need:
        return chance.choice((*NEEDS, "names"))
    assert isinstance(limit, Line)
    return chance.choice((*_NAMED.get(name, _TEXTS), "x" * limit.longest))
