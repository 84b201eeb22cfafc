"""The table of engines that a spec can be rendered for. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import PurePath
from typing import NamedTuple

from tflaunch.clusterspec.model import Spec
from tflaunch.errors import Problem
from tflaunch.feature import features
from tflaunch.features.render import compose, limits, sbatch_script
from tflaunch.features.render.target_plan import FIRST_PORT, SERVER_PROGRAM, fixed
from tflaunch.plan.model import Machine, Plan
from tflaunch.plan.placement import with_gpus


def _as_it_is(spec: Spec) -> Spec:
    return spec


class Engine(NamedTuple):
    """How a spec is rendered for an engine.

    ``rules`` find what it cannot express; ``placed`` gives the tasks their addresses there; ``has_server``: the program
    of `server: true` is mounted, otherwise its text is part of the command; ``first_port``: the first port for tasks
    whose port the spec does not set.
    """

    write: Callable[[Plan, str, str, Spec], str]
    rules: tuple[limits.Rule, ...]
    placed: Callable[[Spec], Spec] = _as_it_is
    has_server: bool = False
    first_port: int = FIRST_PORT


def _jobset() -> dict[str, Engine]:
    """Return the engine with pods like a supervisor's; {} without `kubernetes`."""
    if "kubernetes" not in features():
        return {}
    from tflaunch.features.render import jobset, pods  # of another feature, which may be gone

    rules = (
        limits.tasks,
        limits.image,
        limits.term_alone,
        limits.alike_texts,
        limits.own_addresses,
        limits.directories_of_the_image,
        limits.alike_pods,
        limits.gpus_of_roles,
        pods.names,
    )
    return {"jobset": Engine(jobset.render, rules, pods.placed)}


ENGINES: Mapping[str, Engine] = {
    "slurm": Engine(
        sbatch_script.render,
        (limits.tasks, limits.term_alone, limits.own_addresses, limits.one_gpu_task_per_node, sbatch_script.one_part),
        sbatch_script.placed,
        first_port=sbatch_script.FIRST_PORT,
    ),
    **_jobset(),
    "compose": Engine(
        compose.render,
        (limits.tasks, limits.own_addresses, limits.names_of_services, limits.secrets_in_variables),
        has_server=True,
    ),
}


def find_problems(engine: str, spec: Spec) -> list[Problem]:
    """Return the problems of a spec with an engine."""
    return limits.find_limits(spec, ENGINES[engine].rules)


def plan_for_target(engine: str, spec: Spec, directory: PurePath, machine: Machine, server_text: str) -> Plan:
    """Return the plan to render for an engine.

    Args:
        engine: a name in `ENGINES`.
        spec: a spec without errors and without `find_problems`.
        directory: the directory of the spec's file.
        machine: the machine on which tflaunch runs.
        server_text: the program of `server: true`.
    """
    chosen = ENGINES[engine]
    server = (SERVER_PROGRAM,) if chosen.has_server else ("-c", server_text)
    return fixed(chosen.placed(with_gpus(spec)), directory, machine, server, chosen.first_port)


def render_spec(engine: str, spec: Spec, directory: PurePath, machine: Machine, server_text: str) -> str:
    """Return the file with which an engine starts the tasks of a spec."""
    made = plan_for_target(engine, spec, directory, machine, server_text)
    return ENGINES[engine].write(made, str(directory), machine.server_program, spec)
