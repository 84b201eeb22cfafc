"""What users say of pods and containers reaches pods by tflaunch, rendered ones and the supervisor's alike."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from support.rendering import rendered
from support.schemas import need_schemas, violations
from support.specs import DIRECTORY, MACHINE, made
from tflaunch.discovery import prepare
from tflaunch.features.kubernetes import cluster_objects, pods
from tflaunch.features.kubernetes.kubectl import KubernetesPlan, cluster_of
from tflaunch.features.kubernetes.strategic_merge import merged
from tflaunch.plan import planner

RUN = "night-20260102-030405-6789"
RESTRICTED: dict[str, Any] = {
    "pod": {"securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}},
    "container": {"securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}},
}
SHARED_MEMORY: dict[str, Any] = {
    "pod": {"volumes": [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "8Gi"}}]},
    "container": {"volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}]},
}
SPEC: dict[str, Any] = {"cluster": {"worker": 2, "ps": 1, "chief": 1}, "command": ["python", "train.py"]}
SPEC |= {"name": "night", "workdir": "/code", "container": {"image": "train:1", "volumes": {"/data": "claim"}}}
MARKS = {"labels": {"kueue.x-k8s.io/queue-name": "night"}, "annotations": {"sidecar.istio.io/inject": "false"}}


def cluster(kubernetes: dict[str, Any], **fields: Any) -> KubernetesPlan:
    spec, _ = prepare.complete("spec", Path(), made({**SPEC, **fields, "kubernetes": kubernetes}))
    return cluster_of(pods.with_cluster(spec, planner.make_plan(spec, DIRECTORY, MACHINE)))


def templates(kubernetes: dict[str, Any], **fields: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Return the templates of pods, by what makes them; all objects fit their schemas and have the marks."""
    plan = cluster(kubernetes, **fields)
    made_of: dict[str, list[dict[str, Any]]] = {
        "": [*cluster_objects.stateful_sets(plan), cluster_objects.job(plan, RUN, 1, "ann")]
    }
    for engine in ("jobset", "trainjob"):
        need_schemas(engine)
        made_of[engine] = list(yaml.safe_load_all(rendered({**SPEC, **fields, "kubernetes": kubernetes}, engine)))
    for engine, things in made_of.items():
        assert [list(violations(thing)) for thing in things] == [[]] * len(things)
        for mark, given in ((mark, given) for mark, given in MARKS.items() if mark in kubernetes):
            assert all(given.items() <= thing["metadata"][mark].items() for thing in things)
        spec = things[0]["spec"]
        for part in spec.get("template", things[0])["spec"]["replicatedJobs"] if engine else ():
            yield f"{engine} {part['name']}", part["template"]["spec"]["template"]
    yield from ((thing["metadata"]["name"], thing["spec"]["template"]) for thing in made_of[""])


def test_one_meaning_everywhere() -> None:
    """Labels, annotations and the secrets of registries are on every pod; roles change what all have."""
    given = {**MARKS, "pod": {"imagePullSecrets": [{"name": "registry"}]}, "container": {"imagePullPolicy": "Always"}}
    roles = {"worker": {"kubernetes": SHARED_MEMORY}, "ps": {"kubernetes": {"container": {"imagePullPolicy": None}}}}
    seen = dict(templates(given, roles=roles))
    assert len(seen) == 10
    for name, template in seen.items():
        pod, (container,) = template["spec"], template["spec"]["containers"]
        assert all(given.items() <= template["metadata"][mark].items() for mark, given in MARKS.items()), name
        assert pod["imagePullSecrets"] == [{"name": "registry"}], name
        assert container.get("imagePullPolicy") == (None if name.endswith("ps") else "Always"), name
        paths = [mount["mountPath"] for mount in container["volumeMounts"]]
        wanted = ["/tflaunch", "/tflaunch-order"] if name.endswith("launcher") else ["/data"]
        assert paths == [*wanted, *["/dev/shm"] * name.endswith("worker")], name
        assert len(pod["volumes"]) == len(paths), name


VOLUMES = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}


def refused(pod: dict[str, Any]) -> list[str]:
    """Return what the standard *restricted* (kubernetes.io, Pod Security Standards) refuses in a pod."""
    (container,) = pod["containers"]
    own, common = container.get("securityContext", {}), pod.get("securityContext", {})
    added = own.get("capabilities", {}).get("add", [])
    rules = {
        "namespaces of the host": not any(pod.get(field) for field in ("hostNetwork", "hostPID", "hostIPC")),
        "privileged": not own.get("privileged"),
        "capabilities": own.get("capabilities", {}).get("drop") == ["ALL"] and set(added) <= {"NET_BIND_SERVICE"},
        "volumes": all(set(volume) - {"name"} <= VOLUMES for volume in pod.get("volumes", [])),
        "ports of the host": not any(port.get("hostPort") for port in container.get("ports", [])),
        "escalation": own.get("allowPrivilegeEscalation") is False,
        "not root": own.get("runAsNonRoot", common.get("runAsNonRoot")) is True,
        "user": 0 not in (own.get("runAsUser"), common.get("runAsUser")),
        "seccomp": {**common, **own}.get("seccompProfile", {}).get("type") in ("RuntimeDefault", "Localhost"),
        "sysctls and procMount": not common.get("sysctls") and own.get("procMount", "Default") == "Default",
    }
    return [name for name, is_kept in rules.items() if not is_kept]


def test_the_restricted_standard_admits_every_pod() -> None:
    assert {name: problems for name, each in templates(RESTRICTED) if (problems := refused(each["spec"]))} == {}
    usual = {tuple(refused(each["spec"])) for _, each in templates({})}
    assert usual == {("capabilities", "escalation", "not root", "seccomp")}


def test_a_supervisor_of_ones_own() -> None:
    """It has the resources and account that are named, and what is not for the data of tasks; room for many links."""
    of_tasks = {"initContainers": [{"name": "wait", "image": "wait:1"}], "automountServiceAccountToken": False}
    given = {**of_tasks, **SHARED_MEMORY["pod"], "serviceAccountName": "trainer", "tolerations": [{"key": "a/gpu"}]}
    limits = {"resources": {"limits": {"cpu": None, "memory": "4Gi"}}}
    plan = cluster({"pod": given, "launcher": {"container": limits}})
    pod = cluster_objects.job(plan, RUN, 1, "ann")["spec"]["template"]["spec"]
    assert [each["key"].rpartition("/")[2] for each in pod["tolerations"]] == ["gpu", "not-ready", "unreachable"]
    assert (pod.keys() & of_tasks.keys(), [each["name"] for each in pod["volumes"]]) == (set(), ["home", "order"])
    assert (pod["serviceAccountName"], pod["containers"][0]["resources"]["limits"]) == ("trainer", {"memory": "4Gi"})
    owned = cluster_objects.owned(plan, RUN, [b""], {}, cluster_objects.pods_of(plan))
    assert [thing["kind"] for thing in owned] == ["Secret"]
    many = dict(templates({}, cluster={"worker": 200}))["night-launcher"]["spec"]["containers"]
    assert [each["resources"]["requests"]["memory"] for each in many] == ["3456Mi"]


def test_fields_are_merged_as_kubernetes_merges_them() -> None:
    env = [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]
    before = {"a": {"b": 1, "c": 2}, "tolerations": [1], "env": env, "volumes": [{"name": "v", "emptyDir": {}}],
              "volumeMounts": [{"mountPath": "/a", "name": "x", "readOnly": True}]}  # fmt: skip
    patch = {"a": {"b": None, "d": 3}, "tolerations": [2], "env": [{"name": "A", "valueFrom": {}}, {"name": "C"}],
             "volumes": [{"name": "v", "hostPath": {"path": "/x"}}, 7, {}],
             "volumeMounts": [{"mountPath": "/a", "name": "y"}, {"mountPath": "/b", "name": "x"}]}  # fmt: skip
    assert merged(before, patch) == {
        **patch, "a": {"c": 2, "d": 3}, "env": [{"name": "A", "valueFrom": {}}, env[1], {"name": "C"}],
        "volumeMounts": [{"mountPath": "/a", "name": "y", "readOnly": True}, {"mountPath": "/b", "name": "x"}],
    }  # fmt: skip
