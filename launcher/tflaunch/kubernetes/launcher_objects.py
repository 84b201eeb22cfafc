"""The objects of a supervisor that runs in the cluster: a Job, its permissions, and a copy of its files. Pure.

The Job owns the others, so that its deletion deletes everything of the run.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from tflaunch.plan.model import POD_CONTAINER, KubernetesPlan

LAUNCHER_LABEL = "tflaunch/launcher"
"""The label with the name of the run on the objects of its supervisor, which outlive those of its tasks."""
HOME = "/tflaunch/home"
"""TFLAUNCH_HOME of the supervisor."""
STATE = "/tflaunch-state"
"""Where the pod with the copy has it."""
SECRETS = "/tflaunch-secrets"
"""Where the same pod has the values of secrets, in memory."""
STATE_VARIABLE = "TFLAUNCH_COPY_STATE"
SECRETS_VARIABLE = "TFLAUNCH_COPY_SECRETS"
"""The variables that tell the programs in that pod so."""
_VOLUME = "/tflaunch"  # any user may write to a volume, but not to the directory below
_MOST_FAILURES = 20  # pods of the supervisor that may fail before Kubernetes gives up
_GRACE = 30  # seconds for the supervisor to send the last output to the copy
_NODE_PATIENCE = 20  # seconds after which the supervisor's pod is moved away from a node that does not answer
_VERBS_OF_LISTS = ["list", "watch"]  # these cannot be restricted to names


class LauncherNames(NamedTuple):
    """The names of the objects: of the Job, its account and its Role, and of the StatefulSet with the copy."""

    job: str
    copy: str

    @property
    def copy_pod(self) -> str:
        """The pod with the copy of the run directory."""
        return f"{self.copy}-0"


def names_of(cluster: KubernetesPlan) -> LauncherNames:
    """Return the names of the objects for a cluster plan."""
    return LauncherNames(f"{cluster.name}-launcher", f"{cluster.name}-run-copy")


def job(cluster: KubernetesPlan, run: str, image: str, pull_secrets: Iterable[Any] = ()) -> dict[str, Any]:
    """Return the Job of the supervisor. It starts no pod until its parallelism is raised to 1."""
    name = names_of(cluster).job
    pod = {
        "serviceAccountName": name,
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": _GRACE,
        "tolerations": [
            {
                "key": f"node.kubernetes.io/{key}",
                "operator": "Exists",
                "effect": "NoExecute",
                "tolerationSeconds": _NODE_PATIENCE,
            }
            for key in ("not-ready", "unreachable")
        ],
        "containers": [
            _container(
                image,
                ["tflaunch", "launcher", "supervise", run, cluster.name, cluster.namespace or ""],
                [("home", _VOLUME)],
                {"TFLAUNCH_HOME": HOME},
            )
        ],
        "volumes": [{"name": "home", "emptyDir": {}}],
        "imagePullSecrets": list(pull_secrets),
    }
    template = {"metadata": {"labels": _labels(cluster, run)}, "spec": pod}
    spec = {"parallelism": 0, "backoffLimit": _MOST_FAILURES, "template": template}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": _about(cluster, run, name), "spec": spec}


def owned(
    cluster: KubernetesPlan,
    run: str,
    image: str,
    owner: Mapping[str, str],
    pods: Iterable[str],
    pull_secrets: Iterable[Any] = (),
) -> list[dict[str, Any]]:
    """Return what the Job owns, except for the objects of the tasks.

    Args:
        cluster: where they are made.
        run: the run's name.
        image: has tflaunch and kubectl.
        owner: the reference to the Job.
        pods: the names of the tasks' pods.
        pull_secrets: names of the secrets with which the image is pulled.
    """
    names = names_of(cluster)
    references = {"ownerReferences": [dict(owner)]}

    def about(name: str) -> dict[str, Any]:
        return {**_about(cluster, run, name), **references}

    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": about(names.job)}
    api = "rbac.authorization.k8s.io"
    role = {
        "apiVersion": f"{api}/v1",
        "kind": "Role",
        "metadata": about(names.job),
        "rules": _rules(cluster, names, list(pods)),
    }
    binding = {
        "apiVersion": f"{api}/v1",
        "kind": "RoleBinding",
        "metadata": about(names.job),
        "roleRef": {"apiGroup": api, "kind": "Role", "name": names.job},
        "subjects": [{"kind": "ServiceAccount", "name": names.job}],
    }
    own = {**_labels(cluster, run), "tflaunch/group": names.copy}
    pod = {
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 1,
        "containers": [
            _container(
                image,
                ["tflaunch", "launcher", "hold-copy"],
                [("state", STATE), ("secrets", SECRETS)],
                {STATE_VARIABLE: STATE, SECRETS_VARIABLE: SECRETS},
            )
        ],
        "volumes": [{"name": "state", "emptyDir": {}}, {"name": "secrets", "emptyDir": {"medium": "Memory"}}],
        "imagePullSecrets": list(pull_secrets),
    }
    copy = {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {**about(names.copy), "labels": own},
        "spec": {
            "replicas": 1,
            "serviceName": cluster.name,
            "selector": {"matchLabels": own},
            "template": {"metadata": {"labels": own}, "spec": pod},
        },
    }
    return [account, role, binding, copy]


def _rules(cluster: KubernetesPlan, names: LauncherNames, pods: list[str]) -> list[dict[str, Any]]:
    """Return what the supervisor may do: with this run's objects only, except that it may list."""
    groups = sorted({pod.rpartition("-")[0] for pod in pods})
    return [
        {"apiGroups": [""], "resources": ["pods/exec"], "resourceNames": [*pods, names.copy_pod],
         "verbs": ["create", "get"]},
        {"apiGroups": [""], "resources": ["pods"], "resourceNames": [*pods, names.copy_pod], "verbs": ["get"]},
        {"apiGroups": [""], "resources": ["pods"], "resourceNames": pods, "verbs": ["delete"]},
        {"apiGroups": [""], "resources": ["services"], "resourceNames": [cluster.name], "verbs": ["get", "delete"]},
        {"apiGroups": ["apps"], "resources": ["statefulsets"], "resourceNames": groups, "verbs": ["get", "delete"]},
        {"apiGroups": ["batch"], "resources": ["jobs"], "resourceNames": [names.job], "verbs": ["get", "patch"]},
        {"apiGroups": [""], "resources": ["pods", "services", "events"], "verbs": _VERBS_OF_LISTS},
        {"apiGroups": ["apps"], "resources": ["statefulsets"], "verbs": _VERBS_OF_LISTS},
    ]  # fmt: skip


def pods_of(cluster: KubernetesPlan) -> list[str]:
    """Return the names of the tasks' pods, from the objects that make them."""
    return [
        f"{thing['metadata']['name']}-{index}"
        for thing in json.loads(cluster.objects)
        if thing["kind"] == "StatefulSet"
        for index in range(thing["spec"]["replicas"])
    ]


def _container(image: str, command: list[str], mounts: list[tuple[str, str]], env: Mapping[str, str]) -> dict[str, Any]:
    return {
        "name": POD_CONTAINER,
        "image": image,
        "command": command,
        "env": [{"name": name, "value": value} for name, value in env.items()],
        "volumeMounts": [{"name": name, "mountPath": path} for name, path in mounts],
        "resources": {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"cpu": "1", "memory": "1Gi"}},
    }


def _about(cluster: KubernetesPlan, run: str, name: str) -> dict[str, Any]:
    return {"name": name, "labels": _labels(cluster, run)}


def _labels(cluster: KubernetesPlan, run: str) -> dict[str, str]:
    # Not those by which the Service finds the tasks' pods.
    return {
        "app.kubernetes.io/name": f"{cluster.name}-launcher",
        "app.kubernetes.io/managed-by": "tflaunch",
        LAUNCHER_LABEL: run,
    }
