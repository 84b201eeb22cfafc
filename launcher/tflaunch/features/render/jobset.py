"""Render a plan as a Kubernetes JobSet: one Job per role, which succeed, fail and restart together."""

from __future__ import annotations

from typing import Any

from tflaunch.clusterspec.model import Spec
from tflaunch.core import policy
from tflaunch.features.render import indexed_job, pods, yaml_text
from tflaunch.plan.model import Plan

_HEAD = """\
Made by `tflaunch render --to jobset`, for JobSet v1alpha2: kubectl apply -f FILE
Pods reach each other as {example}.
"""


def placed(spec: Spec) -> Spec:
    """Return the spec placed on the pods of a JobSet, whose names also contain the replica's number."""
    return pods.placed(spec, lambda job, role, index: f"{job}-{role}-0-{index}.{job}")


def render(plan: Plan, directory: str, server_program: str, spec: Spec) -> str:
    """Return the manifest of a JobSet.

    Args:
        plan: of a `placed` spec, with fixed ports.
        directory: the spec's.
        server_program: unused, because its text is in the plan.
        spec: the source of the image, and of the pods' resources and volumes.
    """
    groups = pods.groups(plan)
    deciding = list(dict.fromkeys(plan.find(task).role for task in policy.success_tasks(plan)))
    replicated = [
        {"name": name, "replicas": 1, "template": {"spec": indexed_job.job(plan, tasks, directory, spec)}}
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
    """Return the rules for ends that cause no counted restart: exits without failure, and limits reached."""
    needed = {name: tasks[0] for name, tasks in pods.groups(plan).items() if indexed_job.is_needed(tasks[0])}
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
