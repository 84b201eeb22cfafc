"""Interpret Kubernetes's answers on pods: state, waits, and causes of ends."""

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from tflaunch.core.annotations import HostEndExplained
from tflaunch.core.job_state import Job
from tflaunch.core.states import HostPhase, HostState
from tflaunch.features.kubernetes import kubectl
from tflaunch.runtime.loop import Run
from tflaunch.runtime.watchers import Supervision, Watcher
from tflaunch_worker.readable import duration_words, printable

_IMAGE_REASONS = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "RegistryUnavailable")
_JUST_STARTING = ("ContainerCreating", "PodInitializing")
_UNSCHEDULED = "FailedScheduling"
_GATE = "gate"
_OOM = "OOMKilled"
_PATIENCE = 5.0  # seconds for an answer
_REPORT_AFTER = 1.0  # seconds for which a pod waits for the same thing before that is reported
_PAUSES = (0.5, 1.0)  # seconds
_CAUSES = {
    "Evicted": "evicted: {message}",
    "Preempted": "preempted by a pod of higher priority: {message}",
    "TaintManagerEviction": "evicted: its node has a taint that it does not tolerate, or does not answer",
}
"""Reason of an event of a pod to the cause of its end."""
_DRAINED = "its node {node} is being drained, or takes no more pods"
_SHUT_DOWN = "its node {node} is shutting down"
_DELETED = "its pod was deleted, with kubectl or by what empties its node or shuts it down"
_OF_SHUTDOWN = "node is shutting down"
"""What the condition Ready of a node says among other things (Kubernetes, pkg/kubelet/nodeshutdown)."""


class PodState(NamedTuple):
    """What Kubernetes knows of a pod.

    ``uid`` is that of the pod, and ``container`` the ID of its container while it runs; "" if there is none.
    ``waits_for``: a keyword for what it waits for, and ``reason`` the same as a sentence; "" if it can be used.
    ``ended``: why its container or the pod ended last, "" if it did not.
    """

    uid: str = ""
    container: str = ""
    waits_for: str = ""
    reason: str = ""
    ended: str = ""

    @property
    def is_held(self) -> bool:
        """Whether a queue such as Kueue's holds it back."""
        return self.waits_for == _GATE


class PodWait:
    """The wait for a pod: tells each reason that lasts, and when to give up."""

    def __init__(self, pending: float, tell: Callable[[str, bool], None]) -> None:
        """Wait ``pending`` seconds; ``tell`` gets why, and whether the pod is held back."""
        self._pending = pending
        self._tell = tell
        self._end = time.monotonic() + pending
        self._since: dict[str, float] = {}
        self._told: set[str] = set()

    def note(self, waits_for: str, reason: str, is_held: bool) -> str:
        """Note what it waits for; return why to give up, "" to wait on."""
        now = time.monotonic()
        if is_held:
            self._end = now + self._pending  # Kueue and the like let pods wait for days
        elif now >= self._end:
            return f"{reason}; it did not run within {duration_words(self._pending)} (kubernetes.pending)"
        self._since = {waits_for: self._since.get(waits_for, now)}
        if waits_for not in self._told and now - self._since[waits_for] >= _REPORT_AFTER:
            self._told.add(waits_for)
            self._tell(reason, is_held)
        return ""


def read_pods(
    items: Iterable[Mapping[str, Any]], events: Iterable[Mapping[str, Any]], names: Iterable[str]
) -> dict[str, PodState]:
    """Return the state of the pods with these names, which should exist.

    ``items`` are the run's pods and StatefulSets, as the API returns them, and ``events`` the warnings about them.
    """
    known = list(items)
    pods = {item["metadata"]["name"]: item for item in known if item["kind"] == "Pod"}
    sets = {item["metadata"]["name"]: item["metadata"]["uid"] for item in known if item["kind"] == "StatefulSet"}
    warnings = {event["involvedObject"].get("uid"): event for event in events}  # the last one of each object
    return {
        name: _state(pods[name], warnings) if name in pods else _missing(name.rpartition("-")[0], sets, warnings)
        for name in names
    }


def _missing(group: str, sets: Mapping[str, str], warnings: Mapping[Any, Mapping[str, Any]]) -> PodState:
    if group not in sets:
        return PodState(waits_for="deleted", reason=f"StatefulSet {group} was deleted")
    if warning := warnings.get(sets[group]):
        return PodState(waits_for="refused", reason=f"its pod is refused: {_message(warning)}")
    return PodState(waits_for="controller", reason=f"its pod was not made yet by StatefulSet {group}")


def _state(pod: Mapping[str, Any], warnings: Mapping[Any, Mapping[str, Any]]) -> PodState:
    status, about = pod.get("status", {}), pod["metadata"]
    container: Mapping[str, Any] = next(
        (one for one in status.get("containerStatuses", []) if one["name"] == kubectl.POD_CONTAINER), {}
    )
    running = container.get("containerID", "") if "running" in container.get("state", {}) else ""
    waits_for, reason = "", ""
    if "deletionTimestamp" in about:
        waits_for, reason = "deletion", "its pod is being deleted"
    elif not running:
        waits_for, reason = _why_not_running(pod, container, warnings.get(about["uid"]))
    return PodState(about["uid"], running, waits_for, reason, _end(pod, container))


def _why_not_running(
    pod: Mapping[str, Any], container: Mapping[str, Any], warning: Mapping[str, Any] | None
) -> tuple[str, str]:
    """Return the reason for which a pod waits, as a keyword and as a sentence."""
    status, ended = pod.get("status", {}), _end(pod, container)
    if status.get("phase") == "Failed":
        return "failed", f"its pod has failed: {ended or 'no reason is given'}"
    if gates := [gate["name"] for gate in pod.get("spec", {}).get("schedulingGates") or []]:
        return _GATE, f"its pod is held back by {', '.join(gates)} (schedulingGates)"
    scheduled = _condition(pod, "PodScheduled")
    if scheduled.get("status") != "True":
        why = scheduled.get("message") or "the scheduler has not seen it yet"
        return scheduled.get("reason", "scheduler"), f"its pod has no node: {why}"
    waiting = container.get("state", {}).get("waiting", {})
    reason = waiting.get("reason", "ContainerCreating")
    if reason in _IMAGE_REASONS:
        return "image", f"its image {container.get('image', '')!r} cannot be pulled: {waiting.get('message') or reason}"
    if reason in _JUST_STARTING and warning is not None and warning.get("reason") != _UNSCHEDULED:
        return "creation", f"its container cannot be made: {_message(warning)}"
    if reason in _JUST_STARTING:
        return "start", "its container is being made, or its image pulled"
    about = "; ".join(filter(None, (waiting.get("message"), ended)))
    return reason, f"its container does not run: {reason}{f': {about}' if about else ''}"


def _end(pod: Mapping[str, Any], container: Mapping[str, Any]) -> str:
    """Return why a pod or its container ended; "" if neither did."""
    if announced := announced_end(pod):
        return announced
    end = container.get("state", {}).get("terminated") or container.get("lastState", {}).get("terminated")
    if end is None:
        return ""
    if end.get("reason") == _OOM:
        return f"its container had too little memory ({_OOM}{_limit(pod)}); raise container.resources.memory"
    return f"its container ended with code {end.get('exitCode')} ({end.get('reason', 'no reason')})"


def announced_end(pod: Mapping[str, Any]) -> str:
    """Return why Kubernetes ends or has ended a pod, in its words; "" if it does not."""
    status = pod.get("status", {})
    if status.get("phase") == "Failed" and status.get("reason"):
        return f"{status['reason']}: {status.get('message', '')}".strip(": ")
    disruption = _condition(pod, "DisruptionTarget")
    if not disruption:
        return ""
    return f"{disruption.get('reason', 'disrupted')}: {disruption.get('message', '')}".strip(": ")


def _condition(thing: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    """Return a condition of a pod or node, empty if it has none of this kind."""
    return next((one for one in thing.get("status", {}).get("conditions", []) if one["type"] == kind), {})


def _limit(pod: Mapping[str, Any]) -> str:
    containers = pod.get("spec", {}).get("containers", [])
    limits = [one.get("resources", {}).get("limits", {}) for one in containers if one["name"] == kubectl.POD_CONTAINER]
    return next((f", limit {limit['memory']}" for limit in limits if "memory" in limit), "")


def _message(event: Mapping[str, Any]) -> str:
    return f"{event.get('reason', '')}: {event.get('message', '')}"


class PodEnds(Watcher):
    """Explains the ends of pods of one run."""

    def __init__(self, supervision: Supervision) -> None:
        self._cluster = kubectl.cluster_of(supervision.job.original)
        self._mailbox = supervision.mailbox
        self._hosts: Mapping[str, HostState] = supervision.job.hosts
        self._asking: set[str] = set()

    def watch(self, job: Job, now: float) -> None:
        """Ask about pods that were well until this step."""
        before, self._hosts = self._hosts, job.hosts
        if before is job.hosts:
            return
        for name, host in job.hosts.items():
            was = before[name].phase
            is_emptied = host.phase is HostPhase.LEAVING and host.is_drained and was is not HostPhase.LEAVING
            is_lost = host.phase is HostPhase.DOWN and was in (HostPhase.CONNECTED, HostPhase.DISCONNECTED)
            is_lost = is_lost and not host.is_drained  # one that drains has been asked about
            if is_emptied or is_lost:
                self._asking.add(name)
                threading.Thread(target=self._ask, args=(name, is_emptied), daemon=True).start()

    def finish(self, run: Run) -> None:
        """Wait for the answers: the summary names the cause."""
        run.serve_until(lambda: not self._asking)

    def _ask(self, pod: str, is_deleted: bool) -> None:
        try:
            reason = self._cause_of(pod, is_deleted)
        except kubectl.KubectlError:
            reason = ""  # what the agent has said must do
        if reason:
            self._mailbox.put(HostEndExplained(pod, printable(reason, 300)))
        self._mailbox.call(lambda: self._asking.discard(pod))

    def _cause_of(self, pod: str, is_deleted: bool) -> str:
        """Return why a pod ends or has ended; "" if Kubernetes does not tell."""
        words = ("get", "events", f"--field-selector=involvedObject.name={pod}", "--sort-by=.lastTimestamp")
        for pause in (*_PAUSES, 0.0):  # the event of an eviction follows it, and the kubelet's report a shutdown
            events = kubectl.run_for_json(self._cluster, *words, patience=_PATIENCE).get("items", [])
            with kubectl.readable_answer():
                cause = cause_in(events)
                if not cause and is_deleted:
                    cause = self._announced_end(pod, node_of(events))
                if cause:
                    return cause
            time.sleep(pause)
        return _DELETED if is_deleted else ""

    def _announced_end(self, pod: str, node: str) -> str:
        """Return why a pod was told to end, by its node if it may be seen, or by the pod."""
        with suppress(kubectl.KubectlError):
            shown = kubectl.run_for_json(self._cluster, "get", "node", node, patience=_PATIENCE) if node else {}
            if cause := node_end(shown):
                return cause
        with suppress(kubectl.KubectlError):
            return announced_end(kubectl.run_for_json(self._cluster, "get", "pod", pod, patience=_PATIENCE))
        return ""


def cause_in(events: Iterable[Mapping[str, Any]]) -> str:
    """Return the cause of a pod's end from the last event with one; "" without one."""
    told = [event for event in events if event.get("reason") in _CAUSES]
    return _CAUSES[told[-1]["reason"]].format(message=str(told[-1].get("message", "")).strip()) if told else ""


def node_of(events: Iterable[Mapping[str, Any]]) -> str:
    """Return the node whose kubelet ends a pod, "" without an event of that.

    The pod itself does not tell it: once it has failed, its StatefulSet puts another one in its place, anywhere.
    """
    nodes = [event.get("source", {}).get("host", "") for event in events if event.get("reason") == "Killing"]
    return str(nodes[-1]) if nodes else ""


def node_end(node: Mapping[str, Any]) -> str:
    """Return why a node ends its pods; "" if it does not, or is not known."""
    name = node.get("metadata", {}).get("name")
    if _OF_SHUTDOWN in _condition(node, "Ready").get("message", ""):
        return _SHUT_DOWN.format(node=name)
    return _DRAINED.format(node=name) if node.get("spec", {}).get("unschedulable") else ""
