"""Hosts that are pods: names, objects, what Kubernetes says about them, and what it tells before they exist."""

import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from support.job_history import History
from support.specs import DIRECTORY, MACHINE, made
from support.ungreeted_run import supervision
from tflaunch.clusterspec.model import Spec
from tflaunch.clusterspec.problems import validate_data
from tflaunch.core import policy
from tflaunch.core.annotations import NOTHING, HostEndExplained
from tflaunch.core.events import HostDelayed, HostJoined, HostLeaving, HostLost, LinkLost, TimePassed
from tflaunch.core.states import HostPhase
from tflaunch.core.time_limits import next_deadline
from tflaunch.discovery import prepare
from tflaunch.errors import SpecError
from tflaunch.explain import summary
from tflaunch.features.kubernetes import kubectl, pod_state, pods
from tflaunch.features.kubernetes import pod_connectors as transport
from tflaunch.features.kubernetes.kubectl import NAME, RUN_LABEL, KubectlError, KubernetesPlan, cluster_of
from tflaunch.features.kubernetes.pod_connectors import PodWatch
from tflaunch.features.kubernetes.pod_state import PodState, read_pods
from tflaunch.plan import lint, planner, serialize, tensorboard
from tflaunch.plan.model import Plan
from tflaunch.transport.base import AgentGoneError, LinkError

SPEC: dict[str, Any] = {
    "name": "Night_ly",
    "cluster": {"chief": ["a:2222"], "worker": ["b", "b"], "ps": 1},
    "hosts": {"a": {"docker": "box", "env": {"A": "1"}}, "b": {"python": "/opt/bin/python"}},
    "sidecars": {"Data_a": {"command": ["serve"]}},
    "command": ["python", "train.py"],
    "sync": {},
    "timeouts": {"grace": "2500ms"},
    "container": {
        "image": "ghcr.io/ann/train:1",
        "resources": {"cpu": 2, "memory": "4Gi", "gpu": 2},
        "volumes": {"/data": "claim", "/cache": "/var/cache"},
    },
    "kubernetes": {
        "context": "lab",
        "pod": {"nodeSelector": {"gpu": "a100"}, "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}]},
        "pending": "5m",
    },
}


def _spec(**changes: Any) -> Spec:
    spec, _ = prepare.complete("spec", Path(), made({**SPEC, **changes}))
    return spec


def _plan(**changes: Any) -> Plan:
    spec = _spec(**changes)
    return pods.with_cluster(spec, planner.make_plan(spec, DIRECTORY, MACHINE))


def _sets(**changes: Any) -> dict[str, dict[str, Any]]:
    cluster = cluster_of(_plan(**changes))
    _, *sets = json.loads(cluster.objects)
    return {one["metadata"]["name"]: one for one in sets}


def test_each_task_has_a_pod_with_a_name_of_the_service() -> None:
    plan = _plan()
    ports = {"chief-0": "2222", **dict.fromkeys(("worker-0", "worker-1", "ps-0"), "auto")}
    addresses = {process.task.replace(":", "-"): str(process.address) for process in plan.tasks}
    assert addresses == {name: f"night-ly-{name}.night-ly:{port}" for name, port in ports.items()}
    assert [process.host for process in plan.sidecars] == ["night-ly-data-a-0"]
    assert all(host.engine == NAME and host.inherits_environment and not host.is_local for host in plan.hosts)
    assert all(host.docker is None for host in plan.hosts)
    worker = plan.find("worker:0")
    assert (worker.argv[0], worker.env["PATH"]) == ("/opt/bin/python", "/opt/bin:${host:PATH}")
    assert plan.find("chief:0").env["A"] == "1", "settings of hosts that are about the task are kept"


def test_a_stateful_set_for_each_role_and_sidecar() -> None:
    sets = _sets()
    replicas = {"chief": 1, "worker": 2, "ps": 1, "data-a": 1}
    found = {name.removeprefix("night-ly-"): one["spec"]["replicas"] for name, one in sets.items()}
    assert found == replicas
    for one in sets.values():
        template = one["spec"]["template"]
        assert one["spec"]["serviceName"] == "night-ly"
        assert one["spec"]["podManagementPolicy"] == "Parallel"  # one that waits for its peers would never be ready
        assert template["spec"]["nodeSelector"] == {"gpu": "a100"}
        assert template["spec"]["terminationGracePeriodSeconds"] == 13
    (worker,) = sets["night-ly-worker"]["spec"]["template"]["spec"]["containers"]
    (ps,) = sets["night-ly-ps"]["spec"]["template"]["spec"]["containers"]
    assert (worker["image"], worker["command"]) == ("ghcr.io/ann/train:1", ["/opt/bin/python"])
    assert worker["resources"]["limits"] == {"cpu": "2", "memory": "4Gi", "nvidia.com/gpu": 2}
    assert ps["resources"]["limits"] == {"cpu": "2", "memory": "4Gi"}  # it does not train
    assert [mount["mountPath"] for mount in worker["volumeMounts"]] == ["/data", "/cache"]
    assert sets["night-ly-ps"]["spec"]["template"]["spec"]["volumes"] == [
        {"name": "shm", "emptyDir": {"medium": "Memory"}},
        {"name": "volume-0", "persistentVolumeClaim": {"claimName": "claim"}},
        {"name": "volume-1", "hostPath": {"path": "/var/cache"}},
    ]
    longer = _sets(kubernetes={"pod": {"terminationGracePeriodSeconds": 60}}, timeouts={"grace": "30s"})
    assert {each["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] for each in longer.values()} == {60}


def test_the_plan_is_kept_as_a_whole() -> None:
    plan = _plan()
    assert serialize.from_json(serialize.as_json(plan)) == plan
    assert policy.join_limit(plan, 0.0) == 300.0 + policy.join_limit(plan._replace(made_hosts=None), 0.0)
    assert cluster_of(plan)._replace(objects="", supervisor="{}", is_checked=False) == KubernetesPlan(
        "night-ly", "", 300.0, "lab", launcher="ghcr.io/ann/train:1", keep=3600.0
    )
    assert lint.unused_image(_spec()) == []


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"container": {}}, "container.image: is missing"),
        ({"sync": None}, 'sync: is missing, and pods do not have the files beside the spec; write "sync": {}'),
        ({"name": "n" * 41}, "is too long for the names of pods"),
        ({"cluster": {}, "discover": {"worker": "dns:worker"}}, "discover: would look for hosts"),
        ({"hosts": {"discover": "slurm"}}, "hosts.discover: would look for hosts"),
        ({"sidecars": {"worker-": {"command": ["serve"]}}}, "sidecars.worker-: is 'worker' as a pod, like 'worker'"),
    ],
)
def test_what_pods_cannot_be_made_of(changes: dict[str, Any], sentence: str) -> None:
    data = {key: value for key, value in {**SPEC, **changes}.items() if value is not None}
    for workdir in ("/app", "~/app", "${host:APP}") if "sync" in changes else ():  # the code is in the image
        assert prepare.complete("spec", Path(), made({**data, "workdir": workdir}))[0].kubernetes is not None
    with pytest.raises(SpecError) as found:
        prepare.complete("spec", Path(), made(data))
    assert sentence in "\n".join(problem.sentence() for problem in found.value.problems)
    for place, names in {"pod": ["containers", "restartPolicy"], "container": ["args", "command", "image"]}.items():
        problems = validate_data({**SPEC, "roles": {"ps": {"kubernetes": {place: dict.fromkeys(names, "x")}}}})
        assert isinstance(problems, list)
        assert problems[0].sentence().startswith(f"roles.ps.kubernetes.{place}: sets {names[place == 'container']!r}, ")


# ---- what Kubernetes says


def _pod(status: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    spec = {"containers": [{"name": "tensorflow", "resources": {"limits": {"memory": "4Gi"}}}]}
    about = {"name": "job-worker-0", "uid": "u1", **metadata}
    return {"kind": "Pod", "metadata": about, "spec": spec, "status": status}


def _with_container(state: dict[str, Any], last: dict[str, Any] | None = None, **about: Any) -> dict[str, Any]:
    container = {"name": "tensorflow", "image": "i:1", "state": state, "lastState": last or {}, **about}
    conditions = [{"type": "PodScheduled", "status": "True"}]
    return {"phase": "Pending", "conditions": conditions, "containerStatuses": [container]}


SET = {"kind": "StatefulSet", "metadata": {"name": "job-worker", "uid": "s1"}}
RUNNING = _with_container({"running": {}}, containerID="c1")
UNSCHEDULABLE = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}
NO_NODE = {"phase": "Pending", "conditions": [UNSCHEDULABLE]}
TOO_LITTLE = {"terminated": {"reason": "OOMKilled", "exitCode": 137}}


def _read(*items: dict[str, Any], events: tuple[dict[str, Any], ...] = ()) -> PodState:
    return read_pods(items, events, ["job-worker-0"])["job-worker-0"]


def _warning(uid: str, reason: str, message: str) -> dict[str, Any]:
    return {"involvedObject": {"uid": uid}, "reason": reason, "message": message}


def _waiting(reason: str, last: dict[str, Any] | None = None, **about: Any) -> dict[str, Any]:
    return _pod(_with_container({"waiting": {"reason": reason, **about}}, last))


@pytest.mark.parametrize(
    ("items", "events", "waits_for", "reason"),
    [
        ([SET, _pod(NO_NODE)], (), "Unschedulable", "its pod has no node: 0/3 nodes"),
        ([SET, _pod({"phase": "Pending"})], (), "scheduler", "the scheduler has not seen it yet"),
        ([SET, _waiting("ImagePullBackOff", message="Back-off")], (), "image",
         "its image 'i:1' cannot be pulled: Back-off"),
        ([SET, _waiting("CrashLoopBackOff", TOO_LITTLE)], (), "CrashLoopBackOff",
         "too little memory (OOMKilled, limit 4Gi)"),
        ([SET, _waiting("ContainerCreating")], (_warning("u1", "FailedMount", "no such claim"),), "creation",
         "its container cannot be made: FailedMount: no such claim"),
        ([SET, _waiting("ContainerCreating")], (_warning("u1", "FailedScheduling", "before it had a node"),), "start",
         "its container is being made"),
        ([SET], (_warning("s1", "FailedCreate", "exceeded quota"),), "refused",
         "its pod is refused: FailedCreate: exceeded quota"),
        ([SET], (), "controller", "its pod was not made yet"),
        ([SET], (_warning("s0", "FailedCreate", "of an earlier run"),), "controller", "its pod was not made yet"),
        ([], (), "deleted", "StatefulSet job-worker was deleted"),
        ([SET, _pod(RUNNING, deletionTimestamp="now")], (), "deletion", "its pod is being deleted"),
    ],
)  # fmt: skip
def test_what_a_pod_waits_for(
    items: list[dict[str, Any]], events: tuple[dict[str, Any], ...], waits_for: str, reason: str
) -> None:
    assert _read(SET, _pod(RUNNING)) == PodState("u1", "c1"), "which waits for nothing"
    state = _read(*items, events=events)
    assert state.waits_for == waits_for
    assert reason in state.reason


@pytest.mark.parametrize(
    ("status", "ended"),
    [
        ({"phase": "Failed", "reason": "Evicted", "message": "low on memory"}, "Evicted: low on memory"),
        (_with_container({"running": {}}, TOO_LITTLE, containerID="c2"), "too little memory (OOMKilled, limit 4Gi)"),
        (_with_container({"terminated": {"reason": "Error", "exitCode": 1}}), "ended with code 1 (Error)"),
        ({"conditions": [{"type": "DisruptionTarget", "reason": "Preemption", "message": "by b"}]}, "Preemption: by b"),
    ],
)
def test_why_a_pod_has_ended(status: dict[str, Any], ended: str) -> None:
    assert ended in _read(SET, _pod(status)).ended


# ---- reaching it


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    return now


def _connector(outcomes: list[Any], *states: PodState, pending: float = 60.0) -> transport.PodConnector:
    """Return a connector: each call of kubectl takes the next outcome, each look the next state, the last one again."""
    left, known = list(outcomes), list(states)

    def resume() -> Any:
        outcome = left.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    watch: Any = SimpleNamespace(look_at=lambda _: known.pop(0) if len(known) > 1 else known[0])
    command: Any = SimpleNamespace(open=resume, resume=resume)
    return transport.PodConnector("job-worker-0", command, watch, pending, patience=10.0)


THERE = PodState("u1", "c1")
STUCK = PodState("u1", "", "image", "its image cannot be pulled")


def test_a_pod_is_waited_for_and_the_reason_told_once() -> None:
    """One that cannot be entered yet is tried again."""
    told: list[str] = []
    connector = _connector([*[LinkError("not yet")] * 3, "link"], *[STUCK] * 20, THERE)
    connector.tell_delay(lambda reason, _: told.append(reason))
    assert connector.open() == "link"
    assert told == ["its image cannot be pulled", "not yet"]


def test_a_gate_holds_a_pod_back_for_longer_than_any_limit(clock: list[float]) -> None:
    """Such as that of Kueue; the limit begins when it opens."""
    gated = {**_pod(NO_NODE), "spec": {"containers": [], "schedulingGates": [{"name": "kueue.x-k8s.io/admission"}]}}
    held = _read(SET, gated)
    assert held.reason == "its pod is held back by kueue.x-k8s.io/admission (schedulingGates)"
    told: list[tuple[str, bool]] = []
    connector = _connector(["link"], *[held] * 1000, *[STUCK] * 100, THERE)
    connector.tell_delay(lambda *delay: told.append(delay))
    assert connector.open() == "link"
    assert told == [(held.reason, True), (STUCK.reason, False)]
    history = History(_plan())
    for host in history.job.hosts:
        history.happens(HostDelayed(host, held.reason, True))
    assert next_deadline(history.job) is None
    history.now += 1e6
    history.happens(HostDelayed("night-ly-ps-0", "no node")).wait()
    assert history.now == policy.join_limit(history.job.plan, 1e6 + 1000)
    assert history.job.hosts["night-ly-ps-0"].phase is HostPhase.DOWN
    assert history.job.hosts["night-ly-worker-0"].phase is HostPhase.JOINING


DELETED = PodState(waits_for="deleted", reason="StatefulSet x was deleted")
TOO_LATE = r"cannot be pulled; it did not run within 1 min \(kubernetes.pending\)"


@pytest.mark.parametrize(
    ("outcomes", "state", "reason", "least", "most"),
    [
        ([], STUCK, TOO_LATE, 60, 62),
        ([], DELETED, "StatefulSet x was deleted", 0, 1),
        ([LinkError("forbidden")] * 150, THERE, "forbidden", 0, 11),
    ],
    ids=["a pod that does not run in time", "a deleted set", "a pod that cannot be entered"],
)
def test_what_is_given_up(
    clock: list[float], outcomes: list[Exception], state: PodState, reason: str, least: float, most: float
) -> None:
    with pytest.raises(LinkError, match=reason):
        _connector(outcomes, state).open()
    assert least <= clock[0] <= most


@pytest.mark.parametrize(
    ("later", "reason"),
    [
        (PodState(waits_for="controller", reason="not made yet"), "its pod was deleted"),
        (PodState("u2", "c2"), "its pod was deleted"),
        (PodState("u1", "c2", ended="OOMKilled"), "OOMKilled"),
        (PodState("u1", "", "failed", "failed", "Evicted: low on memory"), "Evicted: low on memory"),
        (THERE, ""),
        (PodState("u1", "c1", "deletion", "it is being deleted"), ""),
    ],
)
def test_an_agent_is_gone_with_its_container_and_not_before(later: PodState, reason: str) -> None:
    connector = _connector(["link", LinkError("cut")], THERE, later)
    connector.open()
    with pytest.raises((LinkError, AgentGoneError), match=reason or "cut") as failed:
        connector.resume()
    assert isinstance(failed.value, AgentGoneError) is bool(reason)


# ---- telling it


def test_what_is_told_of_pods() -> None:
    """A delay once for all hosts that lack the same; that their files are deleted; how TensorBoard is reached."""
    history = History(_plan(tensorboard="/logs"))

    def told(host: str, reason: str) -> list[str]:
        return history.told(HostDelayed(host, reason))

    assert told("night-ly-worker-0", "no node") == ["waiting for night-ly-worker-0: no node"]
    assert told("night-ly-worker-1", "no node") == []
    assert told("night-ly-worker-1", "no image") == ["waiting for night-ly-worker-1: no image"]
    assert history.job.hosts["night-ly-worker-1"].reason == "no image"
    assert summary.where_results_are(history.job) == []
    job = history.job.with_host(history.job.hosts["night-ly-chief-0"]._replace(code="/root/code"))
    assert "deleted with the pods; `collect`" in "\n".join(summary.where_results_are(job))
    collecting = _plan(collect=["out/**"])
    assert summary.where_results_are(job._replace(plan=collecting, original=collecting)) == []
    (_, command) = tensorboard.reach(job.plan, 6006).lines()
    assert command.strip() == "kubectl --context=lab port-forward night-ly-chief-0 6006"


def test_threads_share_a_failure_to_ask(monkeypatch: pytest.MonkeyPatch, clock: list[float]) -> None:
    """Each would otherwise wait for its own timeout, after those of all others."""
    asked = []

    def time_out(*_: object, **__: object) -> None:
        asked.append(clock[0])
        clock[0] += 10
        raise KubectlError("it did not end within 10 s")

    monkeypatch.setattr(kubectl, "run_for_json", time_out)
    watch = PodWatch(KubernetesPlan("job", "[]", 60.0), "tflaunch/run=job-1", ["job-worker-0", "job-worker-1"])
    for pod in ("job-worker-0", "job-worker-1"):
        with pytest.raises(KubectlError, match="within 10 s"):
            watch.look_at(pod)
    assert asked == [0]
    clock[0] += 1
    monkeypatch.setattr(kubectl, "run_for_json", lambda *_, **__: {"items": []})
    assert watch.look_at("job-worker-0").waits_for == "deleted"
    monkeypatch.setattr(kubectl, "run_for_json", lambda *_, **__: {"items": [{"kind": "Pod"}]})
    clock[0] += 1
    with pytest.raises(KubectlError, match="its answer has an unexpected form: KeyError"):
        watch.look_at("job-worker-0")


def test_the_pods_of_a_run_have_names_that_those_of_the_run_before_have_not() -> None:
    run = "night-ly-20260102-030405-6789"
    plan = pods.for_run(_plan(), run)
    service, *sets = json.loads(cluster_of(plan).objects)
    assert service["metadata"]["name"] == cluster_of(plan).name == "night-ly-6789"
    assert service["spec"]["selector"] == {RUN_LABEL: run}
    assert {each["spec"]["serviceName"] for each in sets} == {"night-ly-6789"}
    for each in sets:
        chosen, has = each["spec"]["selector"]["matchLabels"], each["spec"]["template"]["metadata"]["labels"]
        assert chosen.items() <= has.items()
        assert chosen["tflaunch/group"] == each["metadata"]["name"]
    names = [f"{each['metadata']['name']}-{index}" for each in sets for index in range(each["spec"]["replicas"])]
    assert sorted(names) == sorted(host.host for host in plan.hosts)
    first = plan.find("worker:0")
    assert (first.host, str(first.address)) == ("night-ly-6789-worker-0", "night-ly-6789-worker-0.night-ly-6789:auto")
    assert plan.host(first.host).outer_address == "night-ly-6789-worker-0.night-ly-6789"
    long = pods.for_run(_plan(name="n" * 40), f"{'n' * 40}-20260102-030405-6789")
    assert max(len(host.host.rpartition("-")[0]) for host in long.hosts) <= 52  # StatefulSets add a revision of 11


@pytest.mark.parametrize(
    ("events", "cause"),
    [
        ([{"reason": "Scheduled"}, {"reason": "Killing"}], ""),
        ([{"reason": "Evicted", "message": "The node was low on resource: memory. "}],
         "evicted: The node was low on resource: memory."),
        ([{"reason": "Preempted", "message": "Preempted by default/urgent on node n1"}, {"reason": "Killing"}],
         "preempted by a pod of higher priority: Preempted by default/urgent on node n1"),
        ([{"reason": "Evicted", "message": "{x}"}, {"reason": "TaintManagerEviction"}],
         "evicted: its node has a taint that it does not tolerate, or does not answer"),
    ],
)  # fmt: skip
def test_the_last_event_that_ends_a_pod_tells_why(events: list[dict[str, str]], cause: str) -> None:
    assert pod_state.cause_in(events) == cause


def test_the_cause_that_kubernetes_tells_is_that_of_the_end() -> None:
    history = History(_plan())
    for host in history.job.hosts:
        history.happens(HostJoined(host, "10.0.0.1", "", 0))
    lost = "night-ly-worker-0"
    job = history.happens(HostLost(lost, "its pod was deleted")).job
    known = NOTHING.noted(HostEndExplained(lost, "evicted: no disk"), history.now)
    explained = known.explained(job).culprit
    assert (explained and (explained.name, explained.message)) == (lost, "evicted: no disk")
    late = NOTHING.noted(HostEndExplained("night-ly-ps-0", "evicted: no disk"), history.now)
    assert late.explained(job) is job


KILLING = [{"reason": "Killing", "source": {"host": "n1"}}]
WELL = {"metadata": {"name": "n1"}, "status": {"conditions": [{"type": "Ready", "message": "kubelet is ready"}]}}
SHUTS_DOWN = {
    **WELL,
    "spec": {"unschedulable": True},
    "status": {"conditions": [{"type": "Ready", "message": "[no network, node is shutting down]"}]},
}
OF_SHUTDOWN = "Pod was terminated in response to imminent node shutdown."
FAILED = {"status": {"phase": "Failed", "reason": "Terminated", "message": OF_SHUTDOWN}}
DISRUPTED = {
    "status": {"conditions": [{"type": "DisruptionTarget", "reason": "TerminationByKubelet", "message": OF_SHUTDOWN}]}
}
SUCCESSOR = {"status": {"phase": "Pending"}}
FORBIDDEN = KubectlError("nodes is forbidden")
DELETED_BY_SOMEBODY = "its pod was deleted, with kubectl or by what empties its node or shuts it down"


@pytest.mark.parametrize(
    ("events", "nodes", "pod", "cause"),
    [
        ([{"reason": "Preempted", "message": "by b"}, *KILLING], [WELL], SUCCESSOR, "preempted by a pod of higher"),
        (KILLING, [SHUTS_DOWN], SUCCESSOR, "its node n1 is shutting down"),
        (KILLING, [WELL, SHUTS_DOWN], SUCCESSOR, "its node n1 is shutting down"),
        (KILLING, [{**WELL, "spec": {"unschedulable": True}}], SUCCESSOR, "its node n1 is being drained, or takes no"),
        (KILLING, [FORBIDDEN], FAILED, f"Terminated: {OF_SHUTDOWN}"),
        ([], [], DISRUPTED, f"TerminationByKubelet: {OF_SHUTDOWN}"),
        (KILLING, [FORBIDDEN], SUCCESSOR, DELETED_BY_SOMEBODY),
        (KILLING, [WELL], KubectlError("not found"), DELETED_BY_SOMEBODY),
    ],
)
def test_an_announced_end_is_asked_of_node_and_pod(
    events: list[Any], nodes: list[Any], pod: Any, cause: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Once; a node that reports late is asked again, and who may not see nodes hears what the pod says."""
    left = list(nodes)

    def answer(_: object, verb: str, kind: str, *__: str, patience: float) -> Any:
        if kind == "node" and len(left) > 1:
            return left.pop(0)
        found = {"events": {"items": events}, "node": left[0] if left else None, "pod": pod}[kind]
        if isinstance(found, Exception):
            raise found
        return found

    def at_once(target: Any, args: tuple[Any, ...], daemon: bool) -> Any:
        return SimpleNamespace(start=lambda: target(*args))

    monkeypatch.setattr(kubectl, "run_for_json", answer)
    monkeypatch.setattr(pod_state, "threading", SimpleNamespace(Thread=at_once))
    history, told = History(_plan()), list[HostEndExplained]()
    mailbox = SimpleNamespace(put=told.append, call=lambda function: function())
    ends = pod_state.PodEnds(supervision(history.job, tmp_path / "run", mailbox))
    for host in history.job.hosts:
        history.happens(HostJoined(host, "10.0.0.1", "", 0))
    leaving = "night-ly-worker-0"
    for event in (
        TimePassed(), HostLeaving(leaving, "terminated", True), LinkLost(leaving, "cut"), HostLost(leaving, "deleted")
    ):  # fmt: skip
        ends.watch(history.happens(event).job, history.now)
    (only,) = told
    assert (only.host, only.reason[: len(cause)]) == (leaving, cause)
