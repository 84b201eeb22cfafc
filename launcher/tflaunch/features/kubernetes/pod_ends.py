"""Ask Kubernetes why a pod was emptied or lost, which its agent does not know."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from typing import Any

from tflaunch.core.annotations import HostEndExplained
from tflaunch.core.host_state import HostPhase, HostState
from tflaunch.core.job_state import Job
from tflaunch.features.kubernetes import kubectl
from tflaunch.features.kubernetes.cluster import cluster_of
from tflaunch.features.kubernetes.kubectl import KubectlError
from tflaunch.runtime.loop import Run
from tflaunch.runtime.watchers import Supervision, Watcher
from tflaunch_worker.printable import printable

_PATIENCE = 5.0  # seconds for an answer
_PAUSES = (0.5, 1.0)  # seconds
_CAUSES = {
    "Evicted": "evicted: {message}",
    "Preempted": "preempted by a pod of higher priority: {message}",
    "TaintManagerEviction": "evicted: its node has a taint that it does not tolerate, or does not answer",
}
"""Reason of an event of a pod to the cause of its end."""
_DRAINED = "its node {node} is being drained, or takes no more pods"
_DELETED = "its pod was deleted, with kubectl or by what empties its node"


class PodEnds(Watcher):
    """Explains the ends of pods of one run."""

    def __init__(self, supervision: Supervision) -> None:
        self._cluster = cluster_of(supervision.job.original)
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
            if is_emptied or is_lost:
                self._asking.add(name)
                threading.Thread(target=self._ask, args=(name, is_emptied), daemon=True).start()

    def finish(self, run: Run) -> None:
        """Wait for the answers: the summary names the cause."""
        run.serve_until(lambda: not self._asking)

    def _ask(self, pod: str, is_deleted: bool) -> None:
        try:
            reason = self._cause_of(pod, is_deleted)
        except KubectlError:
            reason = ""  # what the agent has said must do
        if reason:
            self._mailbox.put(HostEndExplained(pod, printable(reason, 300)))
        self._mailbox.call(lambda: self._asking.discard(pod))

    def _cause_of(self, pod: str, is_deleted: bool) -> str:
        """Return why a pod ends or has ended; "" if Kubernetes does not tell."""
        words = ("get", "events", f"--field-selector=involvedObject.name={pod}", "--sort-by=.lastTimestamp")
        for pause in (*_PAUSES, 0.0):  # the event of an eviction follows it
            events = kubectl.run_for_json(self._cluster, *words, patience=_PATIENCE)
            with kubectl.readable_answer():
                if cause := cause_in(events.get("items", [])):
                    return cause
            if is_deleted:
                return self._drain_of(pod)
            time.sleep(pause)
        return ""

    def _drain_of(self, pod: str) -> str:
        try:
            there = kubectl.run_for_json(self._cluster, "get", "pod", pod, patience=_PATIENCE)
            name = there.get("spec", {}).get("nodeName", "")
            node = kubectl.run_for_json(self._cluster, "get", "node", name, patience=_PATIENCE) if name else {}
        except KubectlError:
            return _DELETED  # it is gone, or the user may not see nodes
        return _DRAINED.format(node=name) if node.get("spec", {}).get("unschedulable") else _DELETED


def cause_in(events: Iterable[Mapping[str, Any]]) -> str:
    """Return the cause of a pod's end from the last event with one; "" without one."""
    told = [event for event in events if event.get("reason") in _CAUSES]
    return _CAUSES[told[-1]["reason"]].format(message=str(told[-1].get("message", "")).strip()) if told else ""
