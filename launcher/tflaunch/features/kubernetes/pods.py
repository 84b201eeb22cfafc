"""Hosts that are pods: their names and the Kubernetes objects behind them. Pure.

Each task has a pod. The pods of a role belong to one StatefulSet, which replaces a pod under the same name, and a
headless Service gives each name an address before its pod is ready.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tflaunch.clusterspec.model import Host, Kubernetes, Spec
from tflaunch.clusterspec.values import Address
from tflaunch.errors import Problem
from tflaunch.features.kubernetes.kubectl import NAME, POD_CONTAINER, RUN_LABEL, KubernetesPlan, cluster_of, made_in
from tflaunch.features.requested_gpus import with_gpus
from tflaunch.plan.gpu_shares import gpus_given
from tflaunch.plan.model import SIDECAR, Plan, TaskPlan

_SIGNS = re.compile(r"[^a-z0-9]+")
_LONGEST_NAME = 40  # the name of the run is a label value: 63 characters
_LONGEST_PREFIX = 35  # so are those of StatefulSets, with the run's suffix, role and revision
_GROUP = "tflaunch/group"
_GRACE_OF_POD = "terminationGracePeriodSeconds"
OWN_FIELDS = frozenset(("containers", "nodeSelector", _GRACE_OF_POD))
"""Fields of a pod's spec that cannot be misspelt: they are made here."""
_TIME_TO_LEAVE = 10  # seconds for an agent to exit once its tasks have ended


def label(name: str) -> str:
    """Turn a name into a valid Kubernetes name: a DNS label that begins with a letter."""
    text = _SIGNS.sub("-", name.lower()).strip("-")
    return text if text[:1].isalpha() else f"job-{text}"


def problems(spec: Spec) -> Iterator[Problem]:
    """Find what keeps the tasks of a spec from running in pods."""
    if spec.discover or spec.pool is not None:
        message = "would look for hosts, and each task gets a pod of its own"
        yield Problem("error", "discover" if spec.discover else "hosts.discover", message, "give numbers of tasks")
    if spec.spares:
        message = "would be pods without a task, and Kubernetes replaces a lost pod by itself"
        yield Problem("error", "spares", message, "remove it")
    if spec.container.image is None:
        message = "is missing, and pods need an image with Python"
        yield Problem("error", "container.image", message, "add --image NAME, or write it into the spec")
    yield from unlabelled_features(spec)
    if len(label(spec.name)) > _LONGEST_NAME:
        message = f"{spec.name!r} is too long for the names of pods, which begin with it"
        yield Problem("error", "name", message, f"use at most {_LONGEST_NAME} letters")
    if spec.sync is None:
        yield from _missing_code(spec)
    yield from _short_grace(spec)
    seen = {label(role): role for role in spec.cluster}
    for name in spec.sidecars:
        if (other := seen.setdefault(label(name), name)) != name:
            message = f"is {label(name)!r} as a pod, like {other!r}"
            yield Problem("error", f"sidecars.{name}", message, "rename it")


def unlabelled_features(spec: Spec) -> Iterator[Problem]:
    """Find features of nodes that are no labels with a value."""
    places = {"container": spec.container.resources}
    places |= {f"roles.{role}": settings.resources for role, settings in spec.roles.items()}
    for place, resources in places.items():
        for feature in resources.features:
            if "=" not in feature:
                message = f"has {feature!r}, and nodes of Kubernetes have labels with values"
                yield Problem("error", f"{place}.resources.features", message, f'write "{feature}=VALUE"')


def _short_grace(spec: Spec) -> Iterator[Problem]:
    """Find pods that Kubernetes would kill within their tasks' time to save."""
    pod, least = {} if spec.kubernetes is None else spec.kubernetes.pod, _grace_of_pod(spec.timeouts.grace)
    given = pod.get(_GRACE_OF_POD, least)
    if not isinstance(given, int) or given < least:
        message = f"must be at least {least}: timeouts.grace and the {_TIME_TO_LEAVE} s that an agent needs"
        yield Problem.error(f"kubernetes.pod.{_GRACE_OF_POD}", message, "remove it, or lower timeouts.grace")


def _grace_of_pod(grace: float) -> int:
    return math.ceil(grace) + _TIME_TO_LEAVE


def _missing_code(spec: Spec) -> Iterator[Problem]:
    """Find tasks that would start in a directory of this machine."""
    for role, addresses in spec.cluster.items():
        settings = spec.roles.get(role)
        for address in addresses:
            chosen = (settings and settings.workdir) or spec.host(address.host).workdir or spec.workdir or "."
            if not chosen.startswith(("/", "~", "${host:")):
                message = "is missing, and pods do not have the files beside the spec"
                hint = 'write "sync": {} to copy them, or an absolute path in the image as "workdir"'
                yield Problem("error", "sync", message, hint)
                return


def placed(spec: Spec) -> Spec:
    """Return the spec with a pod as the host of every task and sidecar.

    Hosts in the spec only say which settings a task has: ``env``, ``gpus``, ``python`` and ``workdir``.
    """
    job = label(spec.name)
    hosts: dict[str, Host] = {}

    def pod(group: str, index: int, host: str) -> str:
        name = f"{job}-{label(group)}-{index}"
        settings = spec.host(host).only("env", "gpus", "python", "workdir")
        hosts[name] = settings.model_copy(update={"engine": NAME, "address": f"{name}.{job}"})
        return name

    cluster = {
        role: tuple(Address(pod(role, index, address.host), address.port) for index, address in enumerate(addresses))
        for role, addresses in spec.cluster.items()
    }
    sidecars = {
        name: sidecar.model_copy(update={"host": pod(name, 0, sidecar.host)}) for name, sidecar in spec.sidecars.items()
    }
    return with_gpus(spec.model_copy(update={"cluster": cluster, "sidecars": sidecars, "hosts": hosts}))


def for_run(plan: Plan, run: str) -> Plan:
    """Return a plan whose pod names are unique by the last part of the run's name.

    Pods ``mnist-worker-0`` of run ``mnist-20260102-030405-6789`` become ``mnist-6789-worker-0``, in Service
    ``mnist-6789``. Pods of an earlier run may still end while those of the next one begin.
    """
    cluster = cluster_of(plan)
    job = cluster.name
    own = f"{job[:_LONGEST_PREFIX].rstrip('-')}-{run.rpartition('-')[2]}"

    def name(host: str) -> str:
        return own + host.removeprefix(job)

    def placed(process: TaskPlan) -> TaskPlan:
        place = process.address
        if place is not None and place.host == f"{process.host}.{job}":
            place = place._replace(host=f"{name(process.host)}.{own}")
        return process._replace(host=name(process.host), address=place)

    things = json.loads(cluster.objects)
    for thing in things:
        thing["metadata"]["name"] = name(thing["metadata"]["name"])
        if thing["kind"] == "Service":
            thing["spec"]["selector"] = {RUN_LABEL: run}
        for about in _places_of_labels(thing):
            about[RUN_LABEL] = run
            if _GROUP in about:
                about[_GROUP] = thing["metadata"]["name"]
        if thing["kind"] == "StatefulSet":
            thing["spec"]["serviceName"] = own
    return plan._replace(
        tasks=tuple(map(placed, plan.tasks)),
        sidecars=tuple(map(placed, plan.sidecars)),
        hosts=tuple(host._replace(host=name(host.host), address=f"{name(host.host)}.{own}") for host in plan.hosts),
        made_hosts=made_in(cluster._replace(name=own, objects=json.dumps(things))),
    )


def _places_of_labels(thing: dict[str, Any]) -> list[dict[str, str]]:
    """Return the labels of an object, and those by which a StatefulSet knows its pods."""
    spec = thing["spec"]
    inner = [spec["selector"]["matchLabels"], spec["template"]["metadata"]["labels"]] if "template" in spec else []
    return [thing["metadata"]["labels"], *inner]


def with_cluster(spec: Spec, plan: Plan) -> Plan:
    """Return the plan of a `placed` spec, with the objects for its processes."""
    kubernetes, processes, grace = spec.kubernetes, plan.processes(), spec.timeouts.grace
    assert kubernetes is not None
    job = label(spec.name)
    groups: dict[str, list[TaskPlan]] = {}
    for process in processes:
        groups.setdefault(process.host.rpartition("-")[0], []).append(process)
    about = {"labels": labels(job), "annotations": {}}
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": job, **about},
        "spec": {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": labels(job)},
    }
    sets = [_stateful_set(name, job, kubernetes, spec, tasks, grace) for name, tasks in groups.items()]
    cluster = KubernetesPlan(
        job,
        json.dumps([service, *sets]),
        kubernetes.pending,
        kubernetes.context,
        kubernetes.namespace,
        launcher=kubernetes.launcher_image or spec.container.image,
        run_volume=kubernetes.run_volume,
        keep=kubernetes.keep,
    )
    return plan._replace(made_hosts=made_in(cluster))


def labels(job: str) -> dict[str, str]:
    """Return the labels of everything that belongs to a job."""
    return {"app.kubernetes.io/name": job, "app.kubernetes.io/managed-by": "tflaunch"}


def _stateful_set(
    name: str, job: str, kubernetes: Kubernetes, spec: Spec, tasks: Sequence[TaskPlan], grace: float
) -> dict[str, Any]:
    first = next(task for task in tasks if task.role != SIDECAR or len(tasks) == 1)
    own = {**labels(job), _GROUP: name}
    about = {"labels": {**kubernetes.labels, **own}, "annotations": dict(kubernetes.annotations)}
    count = len({task.host for task in tasks})
    pod = _pod(spec, first, grace, kubernetes.pod)
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": name, **about},
        "spec": {
            "replicas": count,
            "serviceName": job,
            "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": own},
            "template": {"metadata": about, "spec": pod},
        },
    }


def _pod(spec: Spec, task: TaskPlan, grace: float, given: Mapping[str, Any]) -> dict[str, Any]:
    """Complete a pod's given spec; `create_owned` adds its command's arguments."""
    container = {
        "name": POD_CONTAINER,
        "image": spec.container.image,
        "command": [spec.host(task.host).python or "python3"],
    }
    pod = {_GRACE_OF_POD: _grace_of_pod(grace), **given, "containers": [container]}
    add_resources(pod, spec, task.role, gpus_given(task.env))
    return pod


def add_resources(pod: dict[str, Any], spec: Spec, role: str, gpus: int) -> None:
    """Add the limits, nodes and volumes of a role's tasks to a pod with one container."""
    (container,) = pod["containers"]
    resources = spec.resources(role)
    limits = {"cpu": resources.cpu, "memory": resources.memory, "nvidia.com/gpu": gpus or None}
    if limits := {name: limit for name, limit in limits.items() if limit is not None}:
        container["resources"] = {"limits": limits}
    if resources.features:
        wanted = dict(feature.split("=", 1) for feature in resources.features)
        pod["nodeSelector"] = {**pod.get("nodeSelector", {}), **wanted}
    volumes = [(f"volume-{number}", *item) for number, item in enumerate(spec.container.volumes.items())]
    if volumes:
        container["volumeMounts"] = [{"name": name, "mountPath": path} for name, path, _ in volumes]
        more = [{"name": name, **_volume_source(source)} for name, _, source in volumes]
        pod["volumes"] = [*pod.get("volumes", []), *more]


def _volume_source(source: str) -> dict[str, Any]:
    """Return the source of a volume: a path on the host, or the name of a claim."""
    if source.startswith("/"):
        return {"hostPath": {"path": source}}
    return {"persistentVolumeClaim": {"claimName": source}}
