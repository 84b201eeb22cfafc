"""Render a plan as a Kubeflow TFJob: its operator makes TF_CONFIG, unless that would be wrong."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from tflaunch.clusterspec.model import Spec
from tflaunch.features.render import indexed_job, pods, yaml_text
from tflaunch.features.render.pods import Index
from tflaunch.features.render.target_plan import program
from tflaunch.plan.model import SIDECAR, Plan, TaskPlan

_HEAD = """\
Made by `tflaunch render --to tfjob`, for the training operator v1: kubectl apply -f FILE
"""
_BESIDE = """\
The other objects do not end with the TFJob: kubectl delete -f FILE
"""
_REPLICAS = {"chief": "Chief", "worker": "Worker", "ps": "PS", "evaluator": "Evaluator"}
_REPLICA_INDEX = Index("REPLICA_INDEX", "metadata.labels['training.kubeflow.org/replica-index']")
_PORT = "tfjob-port"  # the name under which the operator looks for it
_CONFIG = "TF_CONFIG"


def placed(spec: Spec) -> Spec:
    """Return the spec placed on the pods of a TFJob, each with its own Service; sidecars are Jobs."""

    def name_of(job: str, role: str, index: int) -> str:
        return f"{job}-{role}-{index}" if role in _REPLICAS else f"{job}-{role}-{index}.{job}"

    return pods.placed(spec, name_of)


def render(plan: Plan, directory: str, server_program: str, spec: Spec) -> str:
    """Return the manifest of a TFJob, and of Jobs for the sidecars.

    Args:
        plan: of a `placed` spec, with fixed ports.
        directory: the spec's.
        server_program: unused, because its text is in the plan.
        spec: the source of the image, and of the pods' resources and volumes.
    """
    groups = pods.groups(plan)
    replicas = {
        _REPLICAS[role]: {
            "replicas": len(tasks),
            "restartPolicy": "ExitCode",
            "template": pods.template(plan, _with_config(plan, tasks), directory, spec, _REPLICA_INDEX, _PORT),
        }
        for role, tasks in groups.items()
        if role in _REPLICAS
    }
    run_policy: dict[str, Any] = {"cleanPodPolicy": "Running", "backoffLimit": plan.restart.max}
    if plan.timeouts.deadline is not None:
        run_policy["activeDeadlineSeconds"] = max(1, round(plan.timeouts.deadline))
    manifest = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "TFJob",
        "metadata": {"name": plan.name, "labels": pods.labels(plan)},
        "spec": {
            "runPolicy": run_policy,
            **({"successPolicy": "AllWorkers"} if plan.success == "all" and "Worker" in replicas else {}),
            "tfReplicaSpecs": replicas,
        },
    }
    beside = [
        indexed_job.manifest(plan, name, tasks, directory, spec)
        for name, tasks in groups.items()
        if tasks[0].role == SIDECAR
    ]
    services = [indexed_job.service(plan)] if beside else []
    return yaml_text.written(
        _HEAD + (_BESIDE if beside else "") + pods.secrets_head(plan), manifest, *services, *beside
    )


def _with_config(plan: Plan, tasks: Sequence[TaskPlan]) -> list[TaskPlan]:
    """Give tasks a TF_CONFIG where the operator's would be wrong.

    The operator appends its own to the pod's variables, so it takes precedence; only the command can override it.
    """
    is_wrong = _CONFIG in tasks[0].env and _made_by_operator(plan) != json.loads(tasks[0].env[_CONFIG])["cluster"]
    return [
        task._replace(
            env={name: value for name, value in task.env.items() if name != _CONFIG},
            argv=("env", f"{_CONFIG}={task.env[_CONFIG]}", *program(task.argv)) if is_wrong else task.argv,
        )
        for task in tasks
    ]


def _made_by_operator(plan: Plan) -> dict[str, list[str]] | None:
    """Return the cluster in the operator's TF_CONFIG: never with evaluators; none for a single task."""
    if len(plan.tasks) == 1:
        return None
    cluster: dict[str, list[str]] = {}
    for task in plan.tasks:
        if task.role != "evaluator":
            cluster.setdefault(task.role, []).append(str(task.address))
    return cluster
