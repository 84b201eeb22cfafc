"""Render the tasks of a role as an indexed Job of Kubernetes: part of a JobSet, or beside a TFJob. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tflaunch.clusterspec.model import Spec
from tflaunch.core import policy
from tflaunch.features.render import pods
from tflaunch.features.render.pods import COMPLETION_INDEX, CONTAINER, template
from tflaunch.plan.model import Plan, TaskPlan

FOR_EVER = 2**31 - 1
"""A backoffLimit that is never reached."""

_SAVED = [42, 143]  # exit codes of a preempted task that has saved its state


def manifest(plan: Plan, name: str, tasks: Sequence[TaskPlan], directory: str, spec: Spec) -> dict[str, Any]:
    """Return a Job with this name for the tasks of a role, or a sidecar; other arguments as in `job`."""
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": f"{plan.name}-{name}", "labels": pods.labels(plan)},
        "spec": job(plan, tasks, directory, spec, plan.name),
    }


def service(plan: Plan) -> dict[str, Any]:
    """Return the headless Service that gives pods their names; names resolve before a pod is ready."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": plan.name, "labels": pods.labels(plan)},
        "spec": {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": pods.labels(plan)},
    }


def job(
    plan: Plan, tasks: Sequence[TaskPlan], directory: str, spec: Spec, subdomain: str | None = None
) -> dict[str, Any]:
    """Return the spec of a Job for the tasks of one role.

    Args:
        plan: of a `placed` spec, with fixed ports.
        tasks: those of one role, or a sidecar.
        directory: the spec's.
        spec: the source of the image, and of the pods' resources and volumes.
        subdomain: the Service for their names, None if something else provides them.
    """
    pod = template(plan, tasks, directory, spec, COMPLETION_INDEX, CONTAINER)
    needed = is_needed(tasks[0])
    beside = {} if subdomain is None else {"subdomain": subdomain}
    pod["spec"] = {**beside, "restartPolicy": "Never" if needed else "OnFailure", **pod["spec"]}
    alone = policy.restarts_alone(plan, tasks[0])
    fields: dict[str, Any] = {"completionMode": "Indexed", "completions": len(tasks), "parallelism": len(tasks)}
    fields["backoffLimit"] = FOR_EVER if not needed else plan.restart.max if alone else 0
    if plan.timeouts.deadline is not None:
        fields["activeDeadlineSeconds"] = max(1, round(plan.timeouts.deadline))
    if needed and plan.restart.max > 0:
        fields["podFailurePolicy"] = _free_ends("Ignore" if alone else "FailJob")
    return {**fields, "template": pod}


def is_needed(task: TaskPlan) -> bool:
    """Whether the job fails with this task; other tasks end and restart on their own."""
    return policy.in_gang(task) or task.required


def _free_ends(action: str) -> dict[str, Any]:
    """Return the policy for exits that are not failures: state was saved, or the pod was disrupted."""
    saved = {"containerName": CONTAINER, "operator": "In", "values": _SAVED}
    return {
        "rules": [
            {"action": action, "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
            {"action": action, "onExitCodes": saved},
        ]
    }
