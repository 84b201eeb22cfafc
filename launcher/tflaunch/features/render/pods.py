"""Render tasks as pods, the building block of a JobSet. Pure.

The pods of a role share one template and know their index: Kubernetes replaces `$(JOB_COMPLETION_INDEX)` in a
value or a command's argument with the value of that variable, which must be declared first.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

from tflaunch.clusterspec.model import Spec
from tflaunch.clusterspec.values import Address
from tflaunch.errors import Problem
from tflaunch.features.kubernetes import pods
from tflaunch.features.kubernetes.cluster import POD_CONTAINER
from tflaunch.features.kubernetes.pods import label, limits_of, node_selector, volume_source
from tflaunch.features.render.target_plan import FIRST_PORT, devices, without_devices
from tflaunch.plan import tensorboard
from tflaunch.plan.model import SIDECAR, Plan, TaskPlan
from tflaunch.plan.serialize import secret_in_shell

_NUMBERS = re.compile(r"([0-9]+)")
_LONGEST = 63  # characters of a DNS label
_LONGEST_ENDING = "-evaluator-0-9999"


_INDEX = "JOB_COMPLETION_INDEX"
_INDEX_FIELD = "metadata.annotations['batch.kubernetes.io/job-completion-index']"


def names(spec: Spec) -> Iterator[Problem]:
    """Find names that are too long, or no longer distinct, as DNS labels."""
    if len(label(spec.name) + _LONGEST_ENDING) > _LONGEST:
        message = f"{spec.name!r} is too long for the names of pods, which begin with it"
        yield Problem("error", "name", message, f"use at most {_LONGEST - len(_LONGEST_ENDING)} letters")
    seen = {name: name for name in (*spec.cluster, *([tensorboard.NAME] if spec.tensorboard is not None else []))}
    for name in spec.sidecars:
        other = seen.setdefault(label(name), name)
        if other != name or len(f"{label(spec.name)}-{label(name)}-0-0") > _LONGEST:
            message = f"{name!r} is too long for a pod, or {label(name)!r} there like {other!r}"
            yield Problem("error", f"sidecars.{name}", message, "rename it")


def placed(spec: Spec) -> Spec:
    """Return the spec with a pod of a JobSet for every task and sidecar."""
    job = label(spec.name)
    old = [
        (_pod(job, role, index), spec.host(address.host))
        for role, addresses in spec.cluster.items()
        for index, address in enumerate(addresses)
    ]
    cluster = {
        role: tuple(Address(_pod(job, role, index), FIRST_PORT) for index in range(len(addresses)))
        for role, addresses in spec.cluster.items()
    }
    sidecars = {
        label(name): sidecar.model_copy(update={"host": _pod(job, label(name), 0)})
        for name, sidecar in spec.sidecars.items()
    }
    hosts = {name: host.only("env") for name, host in old}
    return spec.model_copy(update={"name": job, "cluster": cluster, "sidecars": sidecars, "hosts": hosts})


def _pod(job: str, role: str, index: int) -> str:
    """Return the address of a pod; the 0 is the number of its replica."""
    return f"{job}-{role}-0-{index}.{job}"


def groups(plan: Plan) -> dict[str, list[TaskPlan]]:
    """Return the tasks of each group of pods: those of a role, or a sidecar."""
    found: dict[str, list[TaskPlan]] = {}
    for process in plan.processes():
        found.setdefault(process.task if process.role == SIDECAR else process.role, []).append(process)
    return found


def template(plan: Plan, tasks: Sequence[TaskPlan], directory: str, spec: Spec) -> dict[str, Any]:
    """Return the pod template of a role.

    Args:
        plan: of a `placed` spec, with fixed ports.
        tasks: those of one role, in the order of their index.
        directory: the spec's; tasks that would start there start in the image's working directory.
        spec: the source of the image, and of the pods' resources and volumes.
    """
    first = tasks[0]
    pod: dict[str, Any] = {
        "name": POD_CONTAINER,
        "image": spec.container.image,
        "command": [indexed(words) for words in zip(*(task.argv for task in tasks), strict=True)],
        **({} if first.workdir == directory else {"workingDir": first.workdir}),
        "env": [*_environment(tasks), *_secrets(plan)],
    }
    if first.address is not None:
        pod["ports"] = [
            {
                "name": tensorboard.NAME if tensorboard.is_board(first) else POD_CONTAINER,
                "containerPort": first.address.port,
            }
        ]
    resources = spec.resources(first.role)
    if limits := limits_of(resources, len(devices(first) or ())):
        pod["resources"] = {"limits": limits}
    volumes = [(f"volume-{number}", *item) for number, item in enumerate(spec.container.volumes.items())]
    if volumes:
        pod["volumeMounts"] = [{"name": volume, "mountPath": path} for volume, path, _ in volumes]
    fields: dict[str, Any] = {"terminationGracePeriodSeconds": math.ceil(plan.timeouts.grace), "containers": [pod]}
    if resources.features:
        fields["nodeSelector"] = node_selector(resources)
    if volumes:
        fields["volumes"] = [{"name": volume, **volume_source(source)} for volume, _, source in volumes]
    return {"metadata": {"labels": labels(plan)}, "spec": fields}


def labels(plan: Plan) -> dict[str, str]:
    """Return the labels of everything that belongs to a job."""
    return pods.labels(plan.name)


def escaped(text: str) -> str:
    """Escape dollar signs that Kubernetes would take for a variable reference."""
    return re.sub(r"\$(?=[$(])", "$$", text)


def indexed(texts: Sequence[str]) -> str:
    """Return one text for all pods of a role, with references to the index.

    Args:
        texts: one per task, in the order of their index; they may differ only in numbers that equal the index.
    """
    if len(set(texts)) == 1:
        return escaped(texts[0])
    start, _, end = texts[0].rpartition("0")
    if all(text == f"{start}{number}{end}" for number, text in enumerate(texts)):
        return f"{escaped(start)}$({_INDEX}){escaped(end)}"
    pieces = zip(*(_NUMBERS.split(text) for text in texts), strict=True)
    return "".join(_piece(variants) for variants in pieces)


def _piece(variants: Sequence[str]) -> str:
    """Return a common piece of all tasks' texts, or a reference to the index."""
    if len(set(variants)) == 1:
        return escaped(variants[0])
    assert list(variants) == [str(number) for number in range(len(variants))], variants
    return f"$({_INDEX})"


def _environment(tasks: Sequence[TaskPlan]) -> list[dict[str, Any]]:
    environments = [(without_devices(task) if devices(task) else task).env for task in tasks]
    values = {name: indexed([env[name] for env in environments]) for name in environments[0]}
    env: list[dict[str, Any]] = [{"name": name, "value": value} for name, value in values.items()]
    if len(tasks) > 1:
        field = {"fieldRef": {"fieldPath": _INDEX_FIELD}}
        env.insert(0, {"name": _INDEX, "valueFrom": field})  # before the variables that use it
    return env


def _secrets(plan: Plan) -> list[dict[str, Any]]:
    """Return references to the Secret with the name of the job."""
    return [
        {"name": name, "valueFrom": {"secretKeyRef": {"name": plan.name, "key": name}}} for name in sorted(plan.secrets)
    ]


def secrets_head(plan: Plan) -> str:
    """Return the command that makes the Secret, "" without secrets."""
    if not plan.secrets:
        return ""
    values = [
        f"--from-file={name}=<(printf %s {secret_in_shell(source)})" for name, source in sorted(plan.secrets.items())
    ]
    return f"Before, in bash: kubectl create secret generic {plan.name} {' '.join(values)}\n"
