"""From a spec to a plan: read the spec, resolve its hosts, check and compile it."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from tflaunch import feature_faults
from tflaunch.clusterspec import load
from tflaunch.clusterspec.model import SERVED_BY_FEATURES, Spec
from tflaunch.clusterspec.spec_file import SpecFile
from tflaunch.discovery import local_machine, resolve
from tflaunch.discovery.base import find_engine
from tflaunch.errors import Problem, SpecError, missing_feature
from tflaunch.feature import features, find_host_maker
from tflaunch.feature import load as load_place
from tflaunch.plan import lint, placement, planner
from tflaunch.plan import model as planning


def read_spec(
    file: SpecFile,
    settings: Sequence[str] = (),
    name: str | None = None,
    command: Sequence[str] = (),
    is_offline: bool = False,
) -> tuple[Spec, list[Problem]]:
    """Return the spec in a file, and its warnings; arguments as in `complete`.

    Raises:
        SpecError: the spec has errors; lists all of them, and the warnings.
    """
    spec = load.load_spec(file, settings, name, command, os.environ)
    return complete(file.source, file.directory, spec, is_offline)


def plan_spec(
    file: SpecFile,
    settings: Sequence[str] = (),
    name: str | None = None,
    command: Sequence[str] = (),
    *,
    is_detached: bool = False,
) -> tuple[planning.Plan, list[Problem]]:
    """Return a spec's plan and warnings; takes arguments and raises as `read_spec`."""
    spec, warnings = read_spec(file, settings, name, command)
    warnings += lint.unused_image(spec)
    return make_plan(file.directory, spec, is_detached=is_detached).warned(warnings), warnings


def complete(source: str, directory: Path, spec: Spec, is_offline: bool = False) -> tuple[Spec, list[Problem]]:
    """Return a spec with discovered hosts, and its warnings; raises as `read_spec`.

    ``source`` is its origin, for messages, and ``directory`` the base of its paths. With ``is_offline``, hosts are only
    assumed.
    """
    maker = find_host_maker(spec)
    if maker is not None:
        if problems := maker.find_problems(spec):
            raise SpecError(source, problems)
        spec = maker.place_tasks(spec)
    elif spec.discover or spec.pool is not None:
        spec = resolve.with_hosts(source, spec, directory.absolute(), is_offline=is_offline)
    return spec, check_spec(source, directory, spec)


def check_spec(source: str, directory: Path, spec: Spec) -> list[Problem]:
    """Return warnings about a complete spec; takes arguments and raises as `complete`."""
    problems = [*_no_lease(spec), *lint.check_spec(spec), *_problems_for_features(spec, directory)]
    problems = [_with_origin(spec, problem) for problem in problems]
    if any(problem.severity == "error" for problem in problems):
        raise SpecError(source, problems)
    return problems


def _problems_for_features(spec: Spec, directory: Path) -> list[Problem]:
    """Return features' problems with a spec and its files, and its unserved fields."""
    asked = {*spec.model_fields_set, f"network: {spec.network}"}
    asked.update(*(part.model_fields_set for part in (*spec.roles.values(), *spec.hosts.values())))
    missing = asked.intersection(SERVED_BY_FEATURES).difference(*(feature.fields for feature in features().values()))
    problems = [missing_feature(field) for field in sorted(missing)]
    for name, feature in features().items():
        if feature.problems:
            with feature_faults.isolated(name):
                problems += load_place(feature.problems)(spec, directory)
    return problems


def _no_lease(spec: Spec) -> list[Problem]:
    """Return the problem of a spec whose tasks would end with any link."""
    if spec.timeouts.lease != 0:
        return []
    others = [host for host in placement.all_hosts(spec) if not local_machine.is_this_machine(host)]
    remedy = "leave it out, or give the time that a cut may last"
    return [
        Problem.error("timeouts.lease", f"0 would end the tasks on {host} at the first hiccup of the network", remedy)
        for host in others[:1]
    ]


def _with_origin(spec: Spec, problem: Problem) -> Problem:
    """Add the name of the defaults file to a problem with a value from there."""
    for place, file in spec.origins.items():
        if problem.where and (problem.where == place or problem.where.startswith((f"{place}.", f"{place}["))):
            return problem._replace(message=f"{problem.message} (from {file})")
    return problem


def make_plan(directory: Path, spec: Spec, is_detached: bool = False) -> planning.Plan:
    """Return the plan of an error-free spec; its paths are relative to ``directory``.

    The tasks of a detached run outlive its supervisor by the usual lease, even on this machine, so that the run
    can be resumed.
    """
    if is_detached and spec.timeouts.lease is None:
        timeouts = spec.timeouts.model_copy(update={"lease": planning.DEFAULT_LEASE})
        spec = spec.model_copy(update={"timeouts": timeouts})
    machine = local_machine.describe_machine(placement.all_hosts(spec))
    plan = _with_ranks(planner.make_plan(spec, directory.absolute(), machine))
    maker = find_host_maker(spec)
    return plan if maker is None else maker.plan_hosts(spec, plan)


def _with_ranks(plan: planning.Plan) -> planning.Plan:
    """Return the plan with the variables of its hosts' engines; a spec's `env` wins."""
    tasks_of: dict[str, list[planning.TaskPlan]] = {}
    for task in plan.tasks:
        engine = plan.host(task.host).engine
        if engine is not None and not planning.is_made(engine):
            tasks_of.setdefault(engine.partition(":")[0], []).append(task)
    variables: dict[str, Mapping[str, str]] = {}
    for engine, tasks in tasks_of.items():
        variables |= find_engine(engine).variables(tasks)
    if not variables:
        return plan
    return plan.with_processes(lambda each: each._replace(env={**variables.get(each.task, {}), **each.env}))
