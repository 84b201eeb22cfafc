"""Render a plan as a Kubernetes JobSet with one Job per role."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tflaunch.clusterspec.model import Spec
from tflaunch.core import policy
from tflaunch.features.kubernetes.cluster import POD_CONTAINER
from tflaunch.features.render import pods, yaml_text
from tflaunch.plan.model import Plan, TaskPlan

_HEAD = """\
Made by `tflaunch render --to jobset`, for JobSet v1alpha2: kubectl apply -f FILE
Pods reach each other as {example}.
"""


_NO_LIMIT = 2**31 - 1  # a backoffLimit that is never reached
_SAVED = [42, 143]  # exit codes of a preempted task that has saved its state


def render(plan: Plan, directory: str, server_program: str, spec: Spec) -> str:
    """Return the manifest of a JobSet.

    Args:
        plan: of a spec that `pods.placed` returns, with fixed ports.
        directory: the spec's.
        server_program: unused, because its text is in the plan.
        spec: the source of the image, and of the pods' resources and volumes.
    """
    groups = pods.groups(plan)
    deciding = list(dict.fromkeys(plan.find(task).role for task in policy.success_tasks(plan)))
    replicated = [
        {"name": name, "replicas": 1, "template": {"spec": _job(plan, tasks, directory, spec)}}
        for name, tasks in groups.items()
    ]
    manifest = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": plan.name, "labels": pods.labels(plan)},
        "spec": {
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True, "subdomain": plan.name},
            "successPolicy": {"operator": "All", "targetReplicatedJobs": deciding},
            "failurePolicy": {"maxRestarts": plan.restart.max, **_rules(plan)},
            "replicatedJobs": replicated,
        },
    }
    return yaml_text.written(_HEAD.format(example=plan.tasks[0].host) + pods.secrets_head(plan), manifest)


def _rules(plan: Plan) -> dict[str, Any]:
    """Return the rules for ends that are not charged to the restarts."""
    needed = {name: tasks[0] for name, tasks in pods.groups(plan).items() if _is_needed(tasks[0])}
    alone = [name for name, task in needed.items() if policy.restarts_alone(plan, task)]
    rules: list[dict[str, Any]] = []
    if plan.timeouts.deadline is not None:
        rules.append({"name": "deadline", "action": "FailJobSet", "onJobFailureReasons": ["DeadlineExceeded"]})
    if plan.restart.max > 0:
        free = {"action": "RestartJobSetAndIgnoreMaxRestarts", "onJobFailureReasons": ["PodFailurePolicy"]}
        together = [name for name in needed if name not in alone]
        rules.append({"name": "startedAgainForFree", **free, "targetReplicatedJobs": together})
    if alone:
        rules.append({"name": "startedAgainTooOften", "action": "FailJobSet", "targetReplicatedJobs": alone})
    return {"rules": rules} if rules else {}


def _job(plan: Plan, tasks: Sequence[TaskPlan], directory: str, spec: Spec) -> dict[str, Any]:
    """Return the spec of the Job of a role or sidecar."""
    pod = pods.template(plan, tasks, directory, spec)
    needed = _is_needed(tasks[0])
    pod["spec"] = {"restartPolicy": "Never" if needed else "OnFailure", **pod["spec"]}
    alone = policy.restarts_alone(plan, tasks[0])
    fields: dict[str, Any] = {"completionMode": "Indexed", "completions": len(tasks), "parallelism": len(tasks)}
    fields["backoffLimit"] = _NO_LIMIT if not needed else plan.restart.max if alone else 0
    if plan.timeouts.deadline is not None:
        fields["activeDeadlineSeconds"] = max(1, round(plan.timeouts.deadline))
    if needed and plan.restart.max > 0:
        fields["podFailurePolicy"] = _free_ends("Ignore" if alone else "FailJob")
    return {**fields, "template": pod}


def _is_needed(task: TaskPlan) -> bool:
    """Whether the job fails with this task; other tasks end and restart on their own."""
    return policy.in_gang(task) or task.required


def _free_ends(action: str) -> dict[str, Any]:
    """Return the policy for exits after a save, and for disrupted pods."""
    saved = {"containerName": POD_CONTAINER, "operator": "In", "values": _SAVED}
    return {
        "rules": [
            {"action": action, "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
            {"action": action, "onExitCodes": saved},
        ]
    }
