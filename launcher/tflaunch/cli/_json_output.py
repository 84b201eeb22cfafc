"""What the commands print with --json: the shape of each, and its JSON Schema."""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypedDict

from tflaunch.client.prune import KeptRun
from tflaunch.client.run_diff import Difference
from tflaunch.client.warm_servers import WarmServer
from tflaunch.clusterspec.values import Address
from tflaunch.core.evidence import Evidence, Frame, Thread
from tflaunch.doctor.findings import Finding, Host
from tflaunch.errors import Problem
from tflaunch.explain.run_status import Status
from tflaunch.explain.scaling import HostUse, TaskUse
from tflaunch.plan.model import Plan, TaskPlan

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


class _Group(TypedDict):
    """Tasks at the same place; `own_frame` is in the user's program, `inner_frame` the innermost."""

    tasks: Sequence[str]
    kind: str
    is_stuck: bool
    does: str
    own_frame: Frame | None
    inner_frame: Frame | None


class _Thread(TypedDict):
    """A thread; `frames` are file, line and function, the innermost first."""

    id: int
    state: str
    wchan: str
    target: str
    has_moved: bool
    frames: Sequence[Sequence[str | int]]


class _Stacks(TypedDict):
    """Where tasks are, and which of them the others wait for."""

    run: str
    sentence: str
    culprits: Sequence[str]
    groups: Sequence[_Group]
    silent_hosts: Sequence[str]
    tasks: Sequence[Evidence]


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


class _Obstacle(TypedDict):
    """Runs that hold a machine; with `is_ahead`, they wait for it as well, and were queued before."""

    machine: str
    runs: Sequence[str]
    is_ahead: bool


class _QueueEntry(TypedDict):
    """A run that waits, since `queued` (seconds since 1970); `needs`: machine to number of GPUs, null for all of it."""

    run: str
    queued: float
    needs: Mapping[str, int | None]
    values: Mapping[str, str]
    obstacles: Sequence[_Obstacle]
    reason: str


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


class _ExaminedHost(NamedTuple):
    """The facts about one host; `reason`: why it was not reached; `reachable_by`: where each task is reachable from."""

    host: str
    reason: str | None
    programs: Mapping[str, Mapping[str, Any]]
    facts: Mapping[str, Any]
    offset: float
    names: Mapping[str, str]
    refused: Mapping[str, str]
    unreached: Mapping[str, str]
    unshared: tuple[str, ...]
    reachable_by: Mapping[str, str]


class _Doctor(TypedDict):
    """What would keep a spec from running; `not_checked`: checks that could not be made, and what they need."""

    ok: bool
    findings: Sequence[Finding]
    not_checked: Mapping[str, str]
    hosts: Sequence[_ExaminedHost]


class _RemovedRun(TypedDict):
    """A run that was removed, or would be; `logs_kept`: where its logs stay, if they are elsewhere."""

    run: str
    state: str
    ended: float | None
    size: int
    logs_kept: str | None


class _Cache(TypedDict):
    """What was removed of a cache; sizes are in bytes."""

    count: int
    size: int


class _Prune(TypedDict):
    """What was removed, or with --dry-run would be."""

    dry_run: bool
    removed: Sequence[_RemovedRun]
    caches: Mapping[str, _Cache]
    kept: Sequence[KeptRun]
    failures: Sequence[str]
    freed: int


class _ScaledRun(TypedDict):
    """A run that was measured; times are in seconds.

    `efficiency` is null if it is not known how the examples of a step change with the workers.
    """

    workers: int
    run: str
    steps: float
    seconds: float
    steps_per_second: float
    examples: float | None
    examples_per_second: float | None
    efficiency: float | None
    efficiency_if_weak: float
    efficiency_if_strong: float
    start_up: float
    training: float | None
    is_synchronous: bool
    limit: str
    reason: str
    advice: str
    tasks: Sequence[TaskUse]
    hosts: Sequence[HostUse]


class _Scale(TypedDict):
    """How a training scales; `problem` says why it was not measured to the end, and `scaling` is weak or strong."""

    name: str
    scaling: str | None
    runs: Sequence[_ScaledRun]
    notes: Sequence[str]
    problem: str | None


class _TaskProfile(TypedDict):
    """The profile of a task: sampled stacks with a `flame_graph`, or the `problem` with it."""

    task: str
    problem: str | None
    path: str | None
    samples: int
    hottest: str | None
    flame_graph: str | None


class _Profile(TypedDict):
    """What the tasks of a run did for some seconds."""

    run: str
    seconds: float
    tasks: Sequence[_TaskProfile]


OUTPUTS: dict[str, Any] = {
    "ps": Status,
    "explain": _Explanation,
    "stacks": _Stacks,
    "ls": Sequence[_RunEntry],
    "queue": Sequence[_QueueEntry],
    "diff": Sequence[Difference],
    "check": _Check,
    "plan": Plan,
    "doctor": _Doctor,
    "warm": Sequence[WarmServer],
    "prune": _Prune,
    "scale": _Scale,
    "profile": _Profile,
}
"""The commands with --json that print one document; `events` prints a record per line (see `schema_of_output`)."""
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
_PRINTED_AS: dict[Any, Any] = {Thread: _Thread, Host: _ExaminedHost, Address: str}
_PRINTED_WITH: dict[Any, dict[str, Any]] = {TaskPlan: {"preload": str | None}, Plan: {"origins": Mapping[str, str]}}
"""What is printed in addition to the fields: the modules to preload, and fields that come from files of defaults."""


def schema_of_output(verb: str) -> dict[str, Any]:
    """Return the JSON Schema of what a command prints with --json; for `events`, of each line."""
    body = _EVENT if verb == "events" else _schema(OUTPUTS[verb])
    return {"$schema": _DIALECT, "title": f"tflaunch {verb} --json", **body}


def _schema(kind: Any) -> dict[str, Any]:
    """Return the schema of values of a type, as `json.dumps` writes them."""
    kind = _PRINTED_AS.get(kind, kind)
    if kind is Any:
        return {}
    if kind in _SIMPLE:
        return {"type": _SIMPLE[kind]}
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return _union([_schema(each) for each in arguments])
    if origin is not None and issubclass(origin, Mapping):
        return {"type": "object", "additionalProperties": _schema(arguments[1])}
    if origin is not None:
        return {"type": "array", "items": _schema(arguments[0])}
    return _object(kind)


def _union(schemas: list[dict[str, Any]]) -> dict[str, Any]:
    if all(set(each) == {"type"} for each in schemas):
        return {"type": [each["type"] for each in schemas]}
    return {"anyOf": schemas}


def _object(kind: Any) -> dict[str, Any]:
    """Return the schema of a class; all of its fields are required unless it says otherwise."""
    hints = {**typing.get_type_hints(kind), **_PRINTED_WITH.get(kind, {})}
    return {
        "type": "object",
        "description": (kind.__doc__ or "").partition("\n")[0],
        "properties": {name: _schema(declared) for name, declared in hints.items()},
        "required": sorted(getattr(kind, "__required_keys__", hints)),
        "additionalProperties": False,
    }
