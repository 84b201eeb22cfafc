"""What an engine gets that submits a run of a spec, and what it returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tflaunch.errors import Problem
from tflaunch.store.run_dir import RunDirectory


class SpecOrder(NamedTuple):
    """The arguments of `up --on`. The spec's file is in ``directory``, with the ending ``suffix``."""

    directory: str
    suffix: str
    settings: Sequence[str] = ()
    name: str | None = None
    command: Sequence[str] = ()
    log_dir: str | None = None
    preflight: bool = True
    extras: Mapping[str, Any] = {}


class Submitted(NamedTuple):
    """A submitted run: its directory, the name that its engine gives it, and the warnings about its spec."""

    directory: RunDirectory
    name: str
    warnings: list[Problem]
