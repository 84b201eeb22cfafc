"""An sbatch script for a plan: a step of its own for every task, on the nodes that Slurm gives."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from tflaunch.plan import Plan, TaskPlan, allotment
from tflaunch.plan.shares import HIDDEN
from tflaunch.render import bash, sbatch
from tflaunch.render.needs import DEVICES, devices, without_devices
from tflaunch.spec import Spec

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
    """Return the spec on the first, second, … node of the allocation."""
    return allotment.onto(spec, [_NODE.format(number) for number in range(allotment.nodes_wanted(spec))])


def render(plan: Plan, directory: str, server_program: str, spec: Spec) -> str:
    """Return the text of a script for sbatch.

    Args:
        plan: of a `placed` spec, with fixed ports.
        directory: not used, as the plan's directories are those of the nodes, too.
        server_program: likewise.
        spec: of which the resources and the options are asked for.
    """
    options = [f"#SBATCH {option}" for option in sbatch.options(plan._replace(elastic=None), spec)]
    head = "\n".join(["#!/bin/bash", *options, bash.comment(_HEAD.format(name=plan.name))])
    step = ["srun", "--overlap", "--nodes=1", "--ntasks=1"]
    if spec.container.resources.cpu is not None:
        step.append(f"--cpus-per-task={sbatch.cores(spec.container.resources.cpu)}")
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


def _starter(process: TaskPlan) -> Sequence[str]:
    """The tasks of a node share its allocation, which `--overlap` lets their steps do."""
    return ('"${step[@]}"', f'--nodelist="{_expanded(process.host)}"')


def _quote(text: str) -> str:
    """Quote text, of which the names of nodes are left to the shell."""
    return _NODES_IN_TEXT.sub(r"'${nodes[\1]}'", shlex.quote(text))


def _expanded(text: str) -> str:
    return _NODES_IN_TEXT.sub(r"${nodes[\1]}", text)
