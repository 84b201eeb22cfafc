"""An sbatch script for a plan: a step of its own for every task, on the nodes that Slurm gives."""

from __future__ import annotations

import math
import re
import shlex
from collections import Counter
from collections.abc import Sequence

from tflaunch.plan import Plan, TaskPlan
from tflaunch.render import bash
from tflaunch.render.needs import DEVICES, devices, without_devices
from tflaunch.shares import HIDDEN
from tflaunch.spec import ROLES, Address, Container, Host, Spec

_HEAD = """\
Made by `tflaunch render --to slurm`: sbatch FILE
Exit code: 0, or that of the first task of {name} that failed. No task is started again.
"""
_NODES = """\
mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
step=({step})
"""
_NODE = "<node {} of the job>"
_NODES_IN_TEXT = re.compile(r"<node (\d+) of the job>")
"""Stands for the name of a node: what no user writes, JSON leaves as it is, and a shell wants in quotes."""


def placed(spec: Spec) -> Spec:
    """Return the spec with the first, second, … node of the allocation for the hosts that it names, in their order."""
    named = [address.host for role in ROLES for address in spec.cluster.get(role, ())]
    names = {host: _NODE.format(number) for number, host in enumerate(dict.fromkeys(named))}
    first = next(iter(names.values()))
    return spec._replace(
        cluster={
            role: tuple(Address(names[address.host], address.port) for address in addresses)
            for role, addresses in spec.cluster.items()
        },
        sidecars={
            name: sidecar._replace(host=names.get(sidecar.host, first)) for name, sidecar in spec.sidecars.items()
        },
        hosts={
            names[host]: Host(env=settings.env, gpus=settings.gpus)
            for host, settings in spec.hosts.items()
            if host in names
        },
    )


def render(plan: Plan, directory: str, server_program: str, container: Container) -> str:
    """Return the text of a script for sbatch.

    Args:
        plan: of a `placed` spec, with fixed ports.
        directory: not used, as the plan's directories are those of the nodes, too.
        server_program: likewise.
        container: of which the resources are asked for.
    """
    options = [f"#SBATCH {option}" for option in _options(plan, container)]
    head = "\n".join(["#!/bin/bash", *options, bash.comment(_HEAD.format(name=plan.name))])
    step = ["srun", "--overlap", "--nodes=1", "--ntasks=1"]
    if container.resources.cpu is not None:
        step.append(f"--cpus-per-task={_cores(container.resources.cpu)}")
    head += "\n" + _NODES.format(step=" ".join(step))
    steps = plan._replace(
        tasks=tuple(_without_devices(task) for task in plan.tasks),
        sidecars=tuple(_without_devices(task) for task in plan.sidecars),
    )
    return bash.script(steps, head, _starter, _quote)


def _without_devices(process: TaskPlan) -> TaskPlan:
    """Leave GPUs to srun, which shows each step those of the job; who is to have none must say so behind srun."""
    hiding = ("env", f"{DEVICES}={HIDDEN}") if devices(process) == [] else ()
    return without_devices(process)._replace(argv=(*hiding, *process.argv))


def _options(plan: Plan, container: Container) -> list[str]:
    processes = plan.processes()
    on_node = Counter(process.host for process in processes)
    most = max(on_node.values())
    resources = container.resources
    options = [f"--job-name={plan.name}", f"--nodes={len(on_node)}", f"--ntasks-per-node={most}"]
    if resources.cpu is not None:
        options.append(f"--cpus-per-task={_cores(resources.cpu)}")
    if resources.memory is not None:
        options.append(f"--mem={int(resources.memory[:-2]) * most}{resources.memory[-2]}")
    if wanted := max(len(devices(process) or ()) for process in processes):
        options.append(f"--gres=gpu:{wanted}")
    if plan.timeouts.deadline is not None:
        options.append(f"--time={math.ceil(plan.timeouts.deadline / 60)}")
    return [*options, "--requeue" if plan.restart.max else "--no-requeue"]


def _cores(cpu: str) -> int:
    return math.ceil(float(cpu))


def _starter(process: TaskPlan) -> Sequence[str]:
    """The tasks of a node share its allocation, which `--overlap` lets their steps do."""
    return ('"${step[@]}"', f'--nodelist="{_expanded(process.host)}"')


def _quote(text: str) -> str:
    """Quote text, of which the names of nodes are left to the shell."""
    return _NODES_IN_TEXT.sub(r"'${nodes[\1]}'", shlex.quote(text))


def _expanded(text: str) -> str:
    return _NODES_IN_TEXT.sub(r"${nodes[\1]}", text)
