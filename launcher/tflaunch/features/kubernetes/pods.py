"""Hosts that are pods: their names and the Kubernetes objects behind them. Pure.

Each task has a pod. The pods of a role belong to one StatefulSet, which replaces a pod under the same name, and a
headless Service gives each name an address before its pod is ready.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tflaunch.clusterspec.model import Host, Kubernetes, PodTemplate, Spec
from tflaunch.clusterspec.values import Address
from tflaunch.errors import Problem
from tflaunch.features.kubernetes.kubectl import NAME, POD_CONTAINER, RUN_LABEL, KubernetesPlan, cluster_of, made_in
from tflaunch.features.kubernetes.strategic_merge import merged
from tflaunch.features.requested_gpus import with_gpus
from tflaunch.plan.gpu_shares import gpus_given
from tflaunch.plan.model import SIDECAR, Plan, TaskPlan
from tflaunch_worker.agent.task_output import LOG_VARIABLE

_SIGNS = re.compile(r"[^a-z0-9]+")
_LONGEST_NAME = 40  # the name of the run is a label value: 63 characters
_LONGEST_PREFIX = 35  # so are those of StatefulSets, with the run's suffix, role and revision
_GROUP = "tflaunch/group"
_GRACE_OF_POD = "terminationGracePeriodSeconds"
_OF_TASKS = (
    *("activeDeadlineSeconds", "automountServiceAccountToken", "initContainers", "serviceAccount", "volumes"),
    _GRACE_OF_POD,
)
"""What users give to the pods of their tasks, and would end or delay the supervisor, or take its permissions."""
_OF_ALL_CONTAINERS = ("imagePullPolicy", "securityContext")
"""Fields of tasks' containers that the supervisor's has, too: what a cluster admits, and where images are."""
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
    yield from short_grace(spec, _TIME_TO_LEAVE)
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


def short_grace(spec: Spec, time_to_leave: int = 0) -> Iterator[Problem]:
    """Find pods that Kubernetes would kill within their tasks' time to save."""
    least = math.ceil(spec.timeouts.grace) + time_to_leave
    agent = f" and the {time_to_leave} s that an agent needs" if time_to_leave else ""
    for place, part in parts_by_place(spec).items():
        given = part.pod.get(_GRACE_OF_POD, least)
        if not isinstance(given, int) or given < least:
            message = f"must be at least {least}: timeouts.grace{agent}"
            yield Problem.error(f"{place}.pod.{_GRACE_OF_POD}", message, "remove it, or lower timeouts.grace")


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
        labelled = [thing["metadata"]["labels"]]
        if thing["kind"] == "StatefulSet":  # which knows its pods by their labels
            spec = thing["spec"]
            spec["serviceName"] = own
            labelled += [spec["selector"]["matchLabels"], spec["template"]["metadata"]["labels"]]
        for about in labelled:
            about[RUN_LABEL] = run
            if _GROUP in about:
                about[_GROUP] = thing["metadata"]["name"]
    return plan._replace(
        tasks=tuple(map(placed, plan.tasks)),
        sidecars=tuple(map(placed, plan.sidecars)),
        hosts=tuple(host._replace(host=name(host.host), address=f"{name(host.host)}.{own}") for host in plan.hosts),
        made_hosts=made_in(cluster._replace(name=own, objects=json.dumps(things))),
    )


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
        supervisor=json.dumps(_of_supervisor(kubernetes)),
        is_checked=any(part.pod or part.container for part in parts_by_place(spec).values()),
        run_volume=kubernetes.run_volume,
        keep=kubernetes.keep,
    )
    return plan._replace(made_hosts=made_in(cluster))


def labels(job: str) -> dict[str, str]:
    """Return the labels of everything that belongs to a job."""
    return {"app.kubernetes.io/name": job, "app.kubernetes.io/managed-by": "tflaunch"}


def _of_supervisor(kubernetes: Kubernetes) -> dict[str, Any]:
    """Return the user's fields of the supervisor's Job, its pod and its container."""
    pod = {name: value for name, value in kubernetes.pod.items() if name not in _OF_TASKS}
    container = {name: value for name, value in kubernetes.container.items() if name in _OF_ALL_CONTAINERS}
    return {
        "labels": dict(kubernetes.labels),
        "annotations": dict(kubernetes.annotations),
        "pod": [pod, dict(kubernetes.launcher.pod)],
        "container": [container, dict(kubernetes.launcher.container)],
    }


def _stateful_set(
    name: str, job: str, kubernetes: Kubernetes, spec: Spec, tasks: Sequence[TaskPlan], grace: float
) -> dict[str, Any]:
    first = next(task for task in tasks if task.role != SIDECAR or len(tasks) == 1)
    own = {**labels(job), _GROUP: name}
    about = {"labels": {**kubernetes.labels, **own}, "annotations": dict(kubernetes.annotations)}
    count = len({task.host for task in tasks})
    command = {"command": [spec.host(first.host).python or "python3"]}  # `create_owned` adds its arguments
    log = {"name": LOG_VARIABLE, "value": "/proc/1/fd/1"}  # the agent copies output there: `kubectl logs` shows it
    pod = {_GRACE_OF_POD: math.ceil(grace) + _TIME_TO_LEAVE}
    pod = pod_spec(spec, first.role, gpus_given(first.env), pod, command, [log])
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


def parts_by_place(spec: Spec) -> dict[str, PodTemplate]:
    """Return pod templates by place in the spec: of all pods, then of each role's."""
    of_roles = {f"roles.{role}.kubernetes": settings.kubernetes for role, settings in spec.roles.items()}
    return {"kubernetes": spec.kubernetes or Kubernetes(), **of_roles}


def pod_spec(
    spec: Spec, role: str, gpus: int, pod: Mapping[str, Any], container: Mapping[str, Any], env: Sequence[Any] = ()
) -> dict[str, Any]:
    """Return the spec of a role's pods: our fields with the user's merged into them.

    Variables in ``env`` win, as the environment of a task does over that of its container.
    """
    resources = spec.resources(role)
    container = {"name": POD_CONTAINER, "image": spec.container.image, **container}
    limits = {"cpu": resources.cpu, "memory": resources.memory, "nvidia.com/gpu": gpus or None}
    if limits := {name: limit for name, limit in limits.items() if limit is not None}:
        container["resources"] = {"limits": limits}
    volumes = [(f"volume-{number}", *item) for number, item in enumerate(spec.container.volumes.items())]
    if volumes:
        container["volumeMounts"] = [{"name": name, "mountPath": path} for name, path, _ in volumes]
    parts = parts_by_place(spec)
    for part in (parts["kubernetes"], parts.get(f"roles.{role}.kubernetes", PodTemplate())):
        pod, container = merged(pod, part.pod), merged(container, part.container)
    if env:
        given, ours = container.get("env", []), {each["name"] for each in env}
        given = given if isinstance(given, list) else [given]  # Kubernetes says what is wrong with it
        container["env"] = [it for it in given if not (isinstance(it, Mapping) and it.get("name") in ours)] + [*env]
    if resources.features:
        wanted = dict(feature.split("=", 1) for feature in resources.features)
        pod = merged(pod, {"nodeSelector": wanted})
    if volumes:
        pod = merged(pod, {"volumes": [{"name": name, **_volume_source(source)} for name, _, source in volumes]})
    return {**pod, "containers": [container]}


def _volume_source(source: str) -> dict[str, Any]:
    """Return the source of a volume: a path on the host, or the name of a claim."""
    if source.startswith("/"):
        return {"hostPath": {"path": source}}
    return {"persistentVolumeClaim": {"claimName": source}}
