"""What an engine gets that checks a spec or submits a run of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tflaunch.clusterspec.spec_file import SpecFile
from tflaunch.discovery import prepare
from tflaunch.errors import Problem
from tflaunch.feature import engines, load
from tflaunch.store.run_dir import RunDirectory


class SpecOrder(NamedTuple):
    """Arguments of `up --on`; the spec's file in ``directory`` ends in ``suffix``."""

    directory: str
    suffix: str
    settings: Sequence[str] = ()
    name: str | None = None
    command: Sequence[str] = ()
    log_dir: str | None = None
    preflight: bool = True
    extras: Mapping[str, Any] = {}


class Submitted(NamedTuple):
    """A submitted run: directory, name in its engine, warnings about its spec."""

    directory: RunDirectory
    name: str
    warnings: list[Problem]


def problems_on(engine: str, file: SpecFile, settings: Sequence[str], command: Sequence[str]) -> list[Problem]:
    """Return the problems of a spec on an engine that can be known now.

    Args:
        engine: a value of ``--on``.
        file: the spec.
        settings: of the spec, with those that the engine means.
        command: in place of the spec's, if it is not empty.

    Raises:
        SpecError: the spec is invalid anywhere; lists all problems.
        TflaunchError: the engine cannot be asked.
    """
    place = engines()[engine].check
    if not place:
        return prepare.read_spec(file, settings, command=command, is_offline=True)[1]
    order = SpecOrder(str(file.directory.absolute()), file.suffix, settings, None, command)
    found: list[Problem] = load(place)(file, order)
    return found
