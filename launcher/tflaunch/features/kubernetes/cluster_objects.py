"""Create the Kubernetes objects of a run, and delete them after its end.

A supervisor in the cluster has a Job, which owns the others, so that its deletion deletes everything of the run.
"""

import base64
import json
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tflaunch.clusterspec.model import Spec
from tflaunch.errors import EXIT_PREFLIGHT, Problem, TflaunchError
from tflaunch.features.kubernetes import kubectl, pods
from tflaunch.features.kubernetes.pod_connectors import connect_pods
from tflaunch.features.kubernetes.pods import label
from tflaunch.features.kubernetes.strategic_merge import merged
from tflaunch.plan.host_maker import HostMaker
from tflaunch.plan.model import Plan, is_made

_DELETE_PATIENCE = 120.0  # seconds for Kubernetes to take a request
REMEDY = 'see that `kubectl get pods` works here, and that "kubernetes" and "container" of the spec fit'
LAUNCHER_LABEL = "tflaunch/launcher"
"""The label with the name of the run on the objects of its supervisor, which outlive those of its tasks."""
BEGUN_MARK = "tflaunch/begun"
"""The annotation of the Job once a supervisor has begun the run."""
EXIT_CODE_MARK = "tflaunch/exit-code"
"""The annotation of the Job with the exit code of the run, once it has ended."""
ENDED_MARK = "tflaunch/ended"
"""The annotation with the time of that, in seconds since 1970."""
SAID_MARK = "tflaunch/said"
"""The annotation with the reason why a run could not begin or go on, "" for none."""
NOTE_MARK = "tflaunch/note"
"""The annotation with what another machine of the user needs to find the run."""
USER_LABEL = "tflaunch/user"
"""The label with the user of the machine that has started the run."""
HOME = "/tflaunch/home"
"""TFLAUNCH_HOME of the supervisor."""
ORDER_VARIABLE = "TFLAUNCH_ORDER"
"""The variable that tells the supervisor's pod where it has the parts of its order."""
MOST_ORDERED = 14_000_000
"""The longest order, in bytes."""
_PART = 900_000  # bytes in a Secret, which may have 1 MiB
_ORDER = "/tflaunch-order"
_VOLUME = "/tflaunch"  # any user may write to a volume, but not to the directory below
_MOST_FAILURES = 20  # pods of the supervisor that may fail before Kubernetes gives up
_GRACE = 10  # seconds for the supervisor's pod to end
_NODE_PATIENCE = 20  # seconds after which the supervisor's pod is moved away from a node that does not answer
_OF_POD = (256, 16)  # MiB of the supervisor, and for the kubectl that carries the link to a pod


class PodHosts(HostMaker):
    """Makes a pod for each task."""

    def find_problems(self, spec: Spec) -> list[Problem]:
        """Return the problems that a spec has with pods."""
        return list(pods.problems(spec))

    def place_tasks(self, spec: Spec) -> Spec:
        """Return the spec with a pod as the host of every task and sidecar."""
        return pods.placed(spec)

    def plan_hosts(self, spec: Spec, plan: Plan) -> Plan:
        """Return the plan with the objects for the pods of its processes."""
        return pods.with_cluster(spec, plan)

    def create_hosts(self, plan: Plan, run: str) -> Plan:
        """Create the objects, unless another process does; return the completed plan."""
        is_ours = kubectl.cluster_of(plan).objects
        return create_owned(pods.for_run(plan, run), run) if is_ours else plan

    @contextmanager
    def deleted_after(self, plan: Plan, run: str, say: Callable[[str], None]) -> Iterator[None]:
        """Delete these objects on exit."""
        cluster = kubectl.cluster_of(plan)
        try:
            yield
        finally:
            try:
                delete_objects(cluster, run)
            except (kubectl.KubectlError, KeyboardInterrupt) as error:
                words = ("delete", "statefulsets,services", f"--selector={kubectl.RUN_LABEL}={run}")
                command, why = shlex.join(cluster.command(*words)), str(error) or "interrupted"
                say(f"warning: the pods of {run} were not deleted: {why}; `{command}` deletes them")

    def connectors_for(self, plan: Plan, run: str) -> dict[str, Any]:
        """Return the connector of each pod."""
        hosts = [host for host in plan.hosts if is_made(host.engine)]
        return dict(connect_pods(kubectl.cluster_of(plan), run, hosts, plan.timeouts.connect))


def create_owned(plan: Plan, run: str, owner: Mapping[str, str] | None = None) -> Plan:
    """Create a plan's objects after `pods.for_run`; return it with its cluster pinned.

    They are deleted with the object to which ``owner`` refers, if one is given.

    Raises:
        TflaunchError: Kubernetes cannot be reached, or refuses them.
    """
    try:
        cluster = kubectl.pinned(kubectl.cluster_of(plan))
        things = [_completed(thing) for thing in json.loads(cluster.objects)]
        try:
            for thing in things if owner else ():
                thing["metadata"]["ownerReferences"] = [owner]
            together = {"apiVersion": "v1", "kind": "List", "items": things}
            check = f"--validate={json.dumps(cluster.is_checked)}"  # it takes kubectl longer than the rest
            kubectl.run_kubectl(cluster, "create", check, "--filename=-", given=json.dumps(together))
        except BaseException:
            delete_objects(cluster, run)  # an interrupted kubectl may have created some
            raise
    except kubectl.KubectlError as error:
        message = f"Kubernetes does not make the pods: {error}; {REMEDY}"
        raise TflaunchError(message, EXIT_PREFLIGHT) from None
    return plan._replace(made_hosts=kubectl.made_in(cluster))


def _completed(thing: dict[str, Any]) -> dict[str, Any]:
    template = thing["spec"].get("template")
    if template is not None:
        source = Path(__file__).with_name("first_process.py").read_text(encoding="utf-8")
        template["spec"]["containers"][0]["command"] += ["-E", "-s", "-S", "-c", f"{source}\n\nmain()"]
    return thing


def delete_objects(cluster: kubectl.KubernetesPlan, run: str, kinds: str = "statefulsets,services,pods") -> None:
    """Ask Kubernetes to delete a run's objects, later; raises as `kubectl.insist`."""
    command = ("delete", kinds, f"--selector={kubectl.RUN_LABEL}={run}", "--ignore-not-found", "--wait=false")
    kubectl.insist(lambda: kubectl.run_kubectl(cluster, *command), _DELETE_PATIENCE)


def launcher_name(cluster: kubectl.KubernetesPlan) -> str:
    """Return the name of a supervisor's Job, account, Role, and RoleBinding."""
    return f"{cluster.name}-launcher"


def note_of(cluster: kubectl.KubernetesPlan) -> str:
    """Describe a cluster, to find the run again."""
    return json.dumps(cluster._replace(objects="", supervisor="{}")._asdict())


def split_order(order: bytes) -> list[bytes]:
    """Split an order into the parts that Secrets have room for."""
    return [order[start : start + _PART] for start in range(0, len(order), _PART)]


def job(cluster: kubectl.KubernetesPlan, run: str, parts: int, user: str) -> dict[str, Any]:
    """Return the supervisor's Job, which starts no pod until its parallelism is 1.

    ``parts`` is the number of parts of its order; ``user`` starts the run, and other machines find it by this name.
    """
    name = launcher_name(cluster)
    given = {"labels": {}, "annotations": {}, "pod": [], "container": [], **json.loads(cluster.supervisor)}
    sources = [
        {"secret": {"name": _part_name(cluster, number), "items": [{"key": "part", "path": f"{number:02}"}]}}
        for number in range(parts)
    ]
    claim = cluster.run_volume
    home = {"emptyDir": {}} if claim is None else {"persistentVolumeClaim": {"claimName": claim}}
    memory = _OF_POD[0] + _OF_POD[1] * len(pods_of(cluster))
    container: dict[str, Any] = {
        "name": kubectl.POD_CONTAINER,
        "image": cluster.launcher,
        "command": ["tflaunch", "launcher", "supervise", run, cluster.name, cluster.namespace or ""],
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "env": [{"name": "TFLAUNCH_HOME", "value": HOME}, {"name": ORDER_VARIABLE, "value": _ORDER}],
        "volumeMounts": [
            {"name": "home", "mountPath": _VOLUME},
            {"name": "order", "mountPath": _ORDER, "readOnly": True},
        ],
        "resources": {
            "requests": {"cpu": "100m", "memory": f"{memory}Mi"},
            "limits": {"cpu": "1", "memory": f"{memory + 768}Mi"},
        },
    }
    missing = [
        {
            "key": f"node.kubernetes.io/{key}",
            "operator": "Exists",
            "effect": "NoExecute",
            "tolerationSeconds": _NODE_PATIENCE,
        }
        for key in ("not-ready", "unreachable")
    ]
    own: dict[str, Any] = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": _GRACE,
        "volumes": [{"name": "home", **home}, {"name": "order", "projected": {"sources": sources}}],
        "serviceAccountName": name,
    }
    for part, more in zip(given["pod"], given["container"], strict=True):
        own, container = merged(own, part), merged(container, more)
    pod = {**own, "containers": [container]}
    pod["tolerations"] = [*pod.get("tolerations", ()), *missing]
    labels, annotations = {**given["labels"], **_labels(cluster, run)}, given["annotations"]
    template = {"metadata": {"labels": labels, "annotations": annotations}, "spec": pod}
    about = {
        "name": name,
        "labels": {**labels, USER_LABEL: label(user)},
        "annotations": {**annotations, NOTE_MARK: note_of(cluster._replace(context=None, config=None))},
    }
    spec = {"parallelism": 0, "backoffLimit": _MOST_FAILURES, "template": template}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": about, "spec": spec}


def owned(
    cluster: kubectl.KubernetesPlan, run: str, parts: Sequence[bytes], owner: Mapping[str, str], pods: Iterable[str]
) -> list[dict[str, Any]]:
    """Return the objects that the Job owns, without those of the tasks in ``pods``."""
    own, rbac = launcher_name(cluster), "rbac.authorization.k8s.io"

    def made(kind: str, name: str = own, api: str = "v1", **fields: Any) -> dict[str, Any]:
        about = {"name": name, "labels": _labels(cluster, run), "ownerReferences": [dict(owner)]}
        return {"apiVersion": api, "kind": kind, "metadata": about, **fields}

    role = {"apiGroup": rbac, "kind": "Role", "name": own}
    subject = {"kind": "ServiceAccount", "name": own}
    account = [
        made("ServiceAccount"),
        made("Role", api=f"{rbac}/v1", rules=_rules(cluster, list(pods))),
        made("RoleBinding", api=f"{rbac}/v1", roleRef=role, subjects=[subject]),
    ]
    return [
        *([] if kubectl.has_own_account(cluster) else account),
        *(
            made("Secret", _part_name(cluster, number), data={"part": base64.b64encode(part).decode()})
            for number, part in enumerate(parts)
        ),
    ]


def _part_name(cluster: kubectl.KubernetesPlan, number: int) -> str:
    return f"{launcher_name(cluster)}-{number}"


def _rules(cluster: kubectl.KubernetesPlan, pods: list[str]) -> list[dict[str, Any]]:
    """Return the supervisor's rights: on this run's objects only, and to list all."""
    groups = sorted({pod.rpartition("-")[0] for pod in pods})
    own = launcher_name(cluster)
    return [
        {"apiGroups": [""], "resources": ["pods/exec"], "resourceNames": pods, "verbs": ["create", "get"]},
        {"apiGroups": [""], "resources": ["pods"], "resourceNames": pods, "verbs": ["get", "delete"]},
        {"apiGroups": [""], "resources": ["services"], "resourceNames": [cluster.name], "verbs": ["get", "delete"]},
        {"apiGroups": ["apps"], "resources": ["statefulsets"], "resourceNames": groups, "verbs": ["get", "delete"]},
        {"apiGroups": ["batch"], "resources": ["jobs"], "resourceNames": [own], "verbs": ["get", "patch"]},
        # Lists cannot be restricted to names.
        {"apiGroups": [""], "resources": ["pods", "services", "events"], "verbs": ["list"]},
        {"apiGroups": ["apps"], "resources": ["statefulsets"], "verbs": ["list"]},
    ]


def stateful_sets(cluster: kubectl.KubernetesPlan) -> list[dict[str, Any]]:
    """Return the objects of a plan that make the tasks' pods."""
    return [thing for thing in json.loads(cluster.objects) if thing["kind"] == "StatefulSet"]


def pods_of(cluster: kubectl.KubernetesPlan) -> list[str]:
    """Return the names of the tasks' pods, from the objects that make them."""
    return [
        f"{thing['metadata']['name']}-{index}"
        for thing in stateful_sets(cluster)
        for index in range(thing["spec"]["replicas"])
    ]


def _labels(cluster: kubectl.KubernetesPlan, run: str) -> dict[str, str]:
    # Not those by which the Service finds the tasks' pods.
    return {
        "app.kubernetes.io/name": launcher_name(cluster),
        "app.kubernetes.io/managed-by": "tflaunch",
        LAUNCHER_LABEL: run,
    }
