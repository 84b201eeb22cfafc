"""Check a cluster before pods exist: namespace, rights, quotas, limits, nodes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tflaunch.clusterspec.model import Spec
from tflaunch.clusterspec.spec_file import SpecFile
from tflaunch.discovery import prepare
from tflaunch.errors import EXIT_PREFLIGHT, Problem, TflaunchError
from tflaunch.features.kubernetes import cluster_objects, kubectl, pods
from tflaunch.features.kubernetes.kubectl import KubectlError, KubernetesPlan, cluster_of
from tflaunch.runtime.run_config import SpecOrder

_FIELDS = {"cpu": "cpu", "memory": "memory", "nvidia.com/gpu": "gpu"}
_FACTORS = {
    "n": 1e-9, "u": 1e-6, "m": 1e-3, "": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18,
    "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50, "Ei": 2.0**60,
}  # fmt: skip
_QUANTITY = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)([numkMGTPE]?|[KMGTPE]i)")
_KINDS = ("requests.", "limits.", "")  # a resource of a quota without a prefix is that of requests


class Group(NamedTuple):
    """Pods of one role or sidecar, which have the same limits and node labels."""

    name: str
    replicas: int
    limits: Mapping[str, Any]
    selector: Mapping[str, str]

    def field(self, spec: Spec, resource: str) -> str:
        """Return where a spec says how much of a resource each has."""
        name = _FIELDS[resource]
        roles = (role for role, settings in spec.roles.items() if pods.label(role) == self.name and settings.resources)
        own = next((role for role in roles if getattr(spec.roles[role].resources, name) is not None), None)
        return f"container.resources.{name}" if own is None else f"roles.{own}.resources.{name}"


def problems_on_cluster(file: SpecFile, order: SpecOrder) -> list[Problem]:
    """Return the problems of a spec, and what its cluster would refuse or never start.

    Raises:
        SpecError: the spec is invalid anywhere.
        TflaunchError: the cluster does not answer.
    """
    spec, problems = prepare.read_spec(file, order.settings, order.name, order.command, is_offline=True)
    planned = cluster_of(prepare.make_plan(Path(order.directory), spec))
    try:
        cluster = kubectl.pinned(planned)
        if missing := _namespace(cluster):
            return [*problems, missing]
        for permission in kubectl.missing_permissions(cluster):
            message = f"you may not {permission} in it"
            problems.append(Problem.error("kubernetes.namespace", message, "ask its administrator for a Role with it"))
        rules = kubectl.run_for_json(cluster, "get", "resourcequotas,limitranges").get("items", [])
        nodes = _nodes(cluster)
        with kubectl.readable_answer():
            found = resource_problems(spec, groups(planned), rules, nodes)
            return [*problems, *dict.fromkeys(found)]  # roles that are alike have the same
    except KubectlError as error:
        message = f"Kubernetes cannot be asked: {error}; {cluster_objects.REMEDY}"
        raise TflaunchError(message, EXIT_PREFLIGHT) from None


def groups(cluster: KubernetesPlan) -> list[Group]:
    """Return the pods of a plan."""
    return [
        Group(
            thing["metadata"]["name"].removeprefix(f"{cluster.name}-"),
            thing["spec"]["replicas"],
            pod["containers"][0].get("resources", {}).get("limits", {}),
            pod.get("nodeSelector", {}),
        )
        for thing in cluster_objects.stateful_sets(cluster)
        for pod in [thing["spec"]["template"]["spec"]]
    ]


def resource_problems(
    spec: Spec, all_pods: Sequence[Group], rules: Iterable[Mapping[str, Any]], nodes: Sequence[Mapping[str, Any]]
) -> Iterator[Problem]:
    """Find resources that pods cannot get, by quotas, limits and nodes from the API."""
    known = list(rules)
    ranges = [rule for each in known if each["kind"] == "LimitRange" for rule in each["spec"]["limits"]]
    ranges = [rule for rule in ranges if rule.get("type") == "Container"]
    for each in known:
        if each["kind"] == "ResourceQuota" and "scopes" not in each["spec"] and "scopeSelector" not in each["spec"]:
            yield from _quota_problems(spec, all_pods, each, ranges)
    for group in all_pods:
        yield from _range_problems(spec, group, ranges)
        yield from _node_problems(spec, group, nodes)


def _quota_problems(
    spec: Spec, all_pods: Sequence[Group], quota: Mapping[str, Any], ranges: Sequence[Mapping[str, Any]]
) -> Iterator[Problem]:
    about, status = f"the quota {quota['metadata']['name']!r}", quota.get("status", {})
    for name, hard in quota["spec"].get("hard", {}).items():
        left = amount(hard) - amount(status.get("used", {}).get(name, 0))
        if name in ("pods", "count/pods"):
            pieces = sum(group.replicas for group in all_pods)
            if pieces > left:
                message = f"asks for {pieces} pods, and {about} has {left:g} of {hard} left"
                yield Problem.error("cluster", message, "start fewer tasks, or wait until other pods have ended")
            continue
        resource = next(name.removeprefix(kind) for kind in _KINDS if name.startswith(kind))
        if resource not in _FIELDS:
            continue
        bare = [group for group in all_pods if resource not in group.limits]
        is_given = any(resource in rule.get("default", {}) for rule in ranges)  # by a LimitRange
        if bare and not is_given and resource != "nvidia.com/gpu":
            message = f"is missing, and {about} asks every pod for it ({name})"
            yield Problem.error(bare[0].field(spec, resource), message, "write it into the spec")
            continue
        with_it = [group for group in all_pods if resource in group.limits]
        needed = sum(group.replicas * amount(group.limits[resource]) for group in with_it)
        if with_it and needed > left:
            message = (
                f"asks for {in_words(needed, resource)} in all pods, and {about} has {in_words(left, resource)}"
                f" of {hard} left ({name})"
            )
            yield Problem.error(with_it[0].field(spec, resource), message, "ask for less, or start fewer tasks")


def _range_problems(spec: Spec, group: Group, ranges: Sequence[Mapping[str, Any]]) -> Iterator[Problem]:
    for resource, limit in group.limits.items():
        for rule in ranges:
            least, most = rule.get("min", {}).get(resource), rule.get("max", {}).get(resource)
            if most is not None and amount(limit) > amount(most):
                message = f"is {limit}, and a LimitRange of the namespace allows at most {most}"
                yield Problem.error(group.field(spec, resource), message, "ask for less")
            if least is not None and amount(limit) < amount(least):
                message = f"is {limit}, and a LimitRange of the namespace asks for at least {least}"
                yield Problem.error(group.field(spec, resource), message, "ask for more")


def _node_problems(spec: Spec, group: Group, nodes: Sequence[Mapping[str, Any]]) -> Iterator[Problem]:
    """Find pods that fit no node: warnings, as a cluster may add a larger one."""
    if not nodes:
        return
    selected = [node for node in nodes if group.selector.items() <= (node["metadata"].get("labels") or {}).items()]
    if not selected:
        labels = ", ".join(f"{name}={value}" for name, value in group.selector.items())
        message = f"asks for a node with {labels}, and there is none"
        yield Problem("warning", "kubernetes.pod.nodeSelector", message, "compare `kubectl get nodes --show-labels`")
        return
    for resource, limit in group.limits.items():
        most = max(amount(node.get("status", {}).get("allocatable", {}).get(resource, 0)) for node in selected)
        if amount(limit) > most:
            had = f"the largest node has {in_words(most, resource)}" if most else "no node has any"
            message = f"asks for {limit} in one pod, and {had}"
            yield Problem("warning", group.field(spec, resource), message, "ask for less, unless nodes are added")


def _namespace(cluster: KubernetesPlan) -> Problem | None:
    """Return the problem of a missing namespace; None if it exists or cannot be read."""
    if cluster.namespace is None:
        return None
    try:
        kubectl.run_kubectl(cluster, "get", "namespace", cluster.namespace, "--output=name")
    except KubectlError as error:
        if "NotFound" not in str(error):
            return None
        message = f"{cluster.namespace!r} does not exist in context {cluster.context!r}"
        hint = f"correct it, or create it: kubectl create namespace {cluster.namespace}"
        return Problem.error("kubernetes.namespace", message, hint)
    return None


def _nodes(cluster: KubernetesPlan) -> list[Mapping[str, Any]]:
    """Return the nodes that take pods; [] if the user may not see them."""
    try:
        found = kubectl.run_for_json(cluster, "get", "nodes").get("items", [])
    except KubectlError:
        return []
    with kubectl.readable_answer():
        return [node for node in found if not node["spec"].get("unschedulable")]


def amount(quantity: object) -> float:
    """Return a quantity as a number: cores, bytes or pieces.

    Raises:
        TypeError: it is something else.
    """
    match = _QUANTITY.fullmatch(str(quantity))
    if match is None:
        raise TypeError(f"{quantity!r:.100} is not a quantity")
    return float(match[1]) * _FACTORS[match[2]]


def in_words(number: float, resource: str) -> str:
    """Return an amount of a resource, as people write it."""
    if resource != "memory":
        return f"{number:g}"
    unit = next((unit for unit in ("Ti", "Gi", "Mi", "Ki") if number >= _FACTORS[unit]), "")
    return f"{number / _FACTORS[unit]:.3g}{unit}"
