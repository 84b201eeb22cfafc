"""From a spec to a plan: find the spec's hosts, check it, and place its tasks."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tflaunch.clusterspec import load
from tflaunch.clusterspec.model import Spec
from tflaunch.clusterspec.spec_file import SpecFile
from tflaunch.errors import Problem, SpecError
from tflaunch.feature import ask, features, find_host_maker
from tflaunch.plan.model import Plan


def read_spec(
    file: SpecFile,
    settings: Sequence[str] = (),
    name: str | None = None,
    command: Sequence[str] = (),
    is_offline: bool = False,
    giver: str = "",
) -> tuple[Spec, list[Problem]]:
    """Return the spec in a file, and its warnings; arguments are those of `load.load_spec` and `complete`.

    Raises:
        SpecError: the spec has errors; lists all of them, and the warnings.
    """
    spec = load_spec(file, settings, name, command)
    spec, problems = complete(file.source, file.directory, spec, is_offline, giver)
    return spec, [*problems, *warnings_about_files(spec, file.directory)]


def plan_spec(
    file: SpecFile,
    settings: Sequence[str] = (),
    name: str | None = None,
    command: Sequence[str] = (),
    *,
    is_detached: bool = False,
) -> tuple[Plan, list[Problem]]:
    """Return the plan of a spec, and the warnings about it; arguments are those of `read_spec` and `make_plan`.

    Raises:
        SpecError: the spec has errors; lists all of them, and the warnings.
    """
    from tflaunch.plan import lint

    spec, warnings = read_spec(file, settings, name, command)
    warnings += lint.unused_image(spec, None)
    return make_plan(file.directory, spec, is_detached=is_detached).warned(warnings), warnings


def warnings_about_files(spec: Spec, directory: Path) -> list[Problem]:
    """Return what features find in the files that a spec names; its paths are relative to ``directory``."""
    asked = [ask(name, feature.warnings, spec, directory) for name, feature in features().items() if feature.warnings]
    return [problem for found in asked for problem in found or ()]


def load_spec(
    file: SpecFile, settings: Sequence[str] = (), name: str | None = None, command: Sequence[str] = ()
) -> Spec:
    """Return the spec in a file; arguments are those of `load.load_spec`.

    Raises:
        SpecError: fields are invalid; lists them, and the problems that the others have with each other.
    """
    with _all_problems():
        return load.load_spec(file, settings, name, command, os.environ)


def spec_from_data(source: str, data: Any, directory: Path) -> Spec:
    """Return the spec in plain data; arguments are those of `load.spec_from_data`.

    Raises:
        SpecError: as `load_spec`.
    """
    with _all_problems():
        return load.spec_from_data(source, data, os.environ, directory)


@contextmanager
def _all_problems() -> Iterator[None]:
    """Add to invalid fields the problems of the rest, so that a spec is corrected in one go."""
    try:
        yield
    except load.InvalidFieldsError as error:
        rest = error.remainder
        if rest is None:
            raise
        from tflaunch.plan import lint

        raise SpecError(error.source, [*error.problems, *lint.check_remainder(rest.spec, rest.places)]) from None


def complete(
    source: str, directory: Path, spec: Spec, is_offline: bool = False, giver: str = ""
) -> tuple[Spec, list[Problem]]:
    """Return a spec with the hosts that it asks to discover, and its warnings.

    Args:
        source: the origin of the spec, for messages.
        directory: the base of relative paths.
        spec: the spec.
        is_offline: whether hosts are only assumed instead of looked up.
        giver: an engine whose hosts are not looked up, because it provides them later.

    Raises:
        SpecError: the spec has errors; lists all of them, and the warnings.
    """
    if spec.pool == giver:
        spec = spec.model_copy(update={"pool": None})
    if spec.kubernetes is not None:
        if giver:  # another engine gets the tasks
            spec = spec.model_copy(update={"kubernetes": None})
        else:
            maker = find_host_maker(spec)
            if maker is not None:
                if problems := maker.find_problems(spec):
                    raise SpecError(source, problems)
                spec = maker.place_tasks(spec)
                return spec, warnings_about(source, spec)
    if spec.discover or spec.pool is not None:
        from tflaunch.discovery import resolve

        spec = resolve.assumed(source, spec) if is_offline else resolve.with_hosts(source, spec, directory.absolute())
    return spec, warnings_about(source, spec)


def warnings_about(source: str, spec: Spec) -> list[Problem]:
    """Return the warnings about a spec that comes from ``source``.

    Raises:
        SpecError: the spec has errors; lists all of them, and the warnings.
    """
    from tflaunch.plan import lint

    problems = [_with_origin(spec, problem) for problem in (*_no_lease(spec), *lint.check_spec(spec))]
    if any(problem.severity == "error" for problem in problems):
        raise SpecError(source, problems)
    return problems


def _no_lease(spec: Spec) -> list[Problem]:
    """Return the problem of a spec whose tasks on other hosts would end as soon as a link is lost."""
    if spec.timeouts.lease != 0:
        return []
    from tflaunch.discovery import local_machine

    others = [host for host in _hosts_of(spec) if not local_machine.is_this_machine(host)]
    if not others:
        return []
    message = f"0 would end the tasks on {others[0]} at the first hiccup of the network"
    return [Problem.error("timeouts.lease", message, "leave it out, or give the time that a cut may last")]


def _hosts_of(spec: Spec) -> list[str]:
    """Return the hosts of tasks and sidecars, and spare hosts."""
    from tflaunch.plan import placement

    hosts = [address.host for addresses in spec.cluster.values() for address in addresses]
    return [*hosts, *(sidecar.host for sidecar in spec.sidecars.values()), *placement.spare_hosts(spec)]


def _with_origin(spec: Spec, problem: Problem) -> Problem:
    """Add the name of the defaults file to a problem with a value from there."""
    for place, file in spec.origins.items():
        if problem.where and (problem.where == place or problem.where.startswith((f"{place}.", f"{place}["))):
            return problem._replace(message=f"{problem.message} (from {file})")
    return problem


def make_plan(directory: Path, spec: Spec, is_detached: bool = False) -> Plan:
    """Return the plan of a spec without errors; its paths are relative to ``directory``.

    The tasks of a detached run outlive its supervisor by the usual lease, even on this machine, so that the run
    can be resumed.
    """
    from tflaunch.discovery import local_machine
    from tflaunch.plan import model as planning
    from tflaunch.plan import planner

    if is_detached and spec.timeouts.lease is None:
        timeouts = spec.timeouts.model_copy(update={"lease": planning.DEFAULT_LEASE})
        spec = spec.model_copy(update={"timeouts": timeouts})
    return planner.make_plan(spec, directory.absolute(), local_machine.describe_machine(_hosts_of(spec)))
