"""What `stacks` prints with --json."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from tflaunch.cli.json_output import Output
from tflaunch.core.evidence import Evidence, Frame, Thread


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


STACKS = Output(_Stacks, {Thread: _Thread})
