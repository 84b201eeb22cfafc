"""What the commands print with --json: the shape of each, and its JSON Schema."""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypedDict

from tflaunch.cli.main import verbs
from tflaunch.clusterspec.values import Address
from tflaunch.errors import Problem
from tflaunch.explain.run_status import Status
from tflaunch.plan.model import Plan, TaskPlan
from tflaunch.rooms import load

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_SIMPLE = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}


class _Culprit(TypedDict):
    """The task that failed first; all fields are null or empty if it is a host or a limit."""

    task: str | None
    host: str | None
    attempt: int | None
    python: str | None
    traceback: Sequence[str]
    last_lines: Sequence[str]


class _Explanation(TypedDict):
    """Why a run failed, or its state; `next` has commands that help further, the most useful first."""

    run: str
    state: str
    exit_code: int | None
    restarts: int
    sentence: str
    hang: str | None
    culprit: _Culprit | None
    hint: str | None
    also_stopped: Sequence[str]
    not_restarted: str | None
    unended: Sequence[str]
    logs: str
    next: Sequence[str]


class _RunEntry(TypedDict):
    """A run; times are in seconds since the epoch, null for what has not happened or cannot be read.

    `matrix` has the values of --matrix; `step` and `metrics` are the last ones that an ended run has reported.
    """

    run: str
    name: str | None
    state: str
    exit_code: int | None
    tasks: int | None
    started: float | None
    ended: float | None
    matrix: Mapping[str, str]
    step: int | None
    metrics: Mapping[str, float]


class _Checked(TypedDict):
    """The problems of one spec."""

    spec: str
    ok: bool
    problems: Sequence[Problem]


class _OfSeveral(TypedDict, total=False):
    specs: Sequence[_Checked]


class _Check(_OfSeveral):
    """The problems of all specs; `specs` only if there are several."""

    ok: bool
    problems: Sequence[Problem]


class Output(NamedTuple):
    """What a command prints with --json.

    Args:
        shape: the type of the one document.
        printed_as: types that are printed in the shape of another one.
        printed_with: fields that are printed in addition to those of a type.
    """

    shape: Any
    printed_as: Mapping[Any, Any] = {}
    printed_with: Mapping[Any, Mapping[str, Any]] = {}


PS = Output(Status)
EXPLAIN = Output(_Explanation)
LS = Output(Sequence[_RunEntry])
CHECK = Output(_Check)
# The modules to preload, and fields that come from files of defaults.
PLAN = Output(Plan, {Address: str}, {TaskPlan: {"preload": str | None}, Plan: {"origins": Mapping[str, str]}})
_EVENT = {
    "type": "object",
    "description": "A record of the journal; the other fields depend on its kind.",
    "properties": {
        "seq": {"type": "integer"},
        "time": {"type": "number", "description": "seconds since the epoch"},
        "kind": {"type": "string"},
    },
    "required": ["seq", "time", "kind"],
}


def with_output() -> list[str]:
    """Return the commands with --json that print one document; `events` prints a record per line."""
    return [name for name, verb in verbs().items() if verb.output]


def schema_of_output(verb: str) -> dict[str, Any]:
    """Return the JSON Schema of what a command prints with --json; for `events`, of each line."""
    body = _EVENT if verb == "events" else _Schemas(load(verbs()[verb].output)).schema_of_shape()
    return {"$schema": _DIALECT, "title": f"tflaunch {verb} --json", **body}


class _Schemas:
    """The schemas of the types in an output, as `json.dumps` writes their values."""

    def __init__(self, output: Output) -> None:
        self._output = output

    def schema_of_shape(self) -> dict[str, Any]:
        """Return the schema of the whole document."""
        return self._of(self._output.shape)

    def _of(self, kind: Any) -> dict[str, Any]:
        kind = self._output.printed_as.get(kind, kind)
        if kind is Any:
            return {}
        if kind in _SIMPLE:
            return {"type": _SIMPLE[kind]}
        origin, arguments = typing.get_origin(kind), typing.get_args(kind)
        if origin in (typing.Union, types.UnionType):
            return _union([self._of(each) for each in arguments])
        if origin is not None and issubclass(origin, Mapping):
            return {"type": "object", "additionalProperties": self._of(arguments[1])}
        if origin is not None:
            return {"type": "array", "items": self._of(arguments[0])}
        return self._of_object(kind)

    def _of_object(self, kind: Any) -> dict[str, Any]:
        """Return the schema of a class; all of its fields are required unless it says otherwise."""
        hints = {**typing.get_type_hints(kind), **self._output.printed_with.get(kind, {})}
        return {
            "type": "object",
            "description": (kind.__doc__ or "").partition("\n")[0],
            "properties": {name: self._of(declared) for name, declared in hints.items()},
            "required": sorted(getattr(kind, "__required_keys__", hints)),
            "additionalProperties": False,
        }


def _union(schemas: list[dict[str, Any]]) -> dict[str, Any]:
    if all(set(each) == {"type"} for each in schemas):
        return {"type": [each["type"] for each in schemas]}
    return {"anyOf": schemas}
