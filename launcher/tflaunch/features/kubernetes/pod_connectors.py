"""Reach hosts that are pods, once Kubernetes has made them, by `kubectl exec`."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from tflaunch.features.commands.command_link import CommandAccess, CommandConnector, CommandConnectors, CommandLink
from tflaunch.features.kubernetes import kubectl, pod_state
from tflaunch.features.kubernetes.kubectl import RUN_LABEL, KubectlError, KubernetesPlan
from tflaunch.features.kubernetes.pod_state import PodState, PodWait
from tflaunch.plan.model import HostPlan
from tflaunch.transport.base import AgentGoneError, LinkError

_POLL = 0.5  # seconds between looks at what a pod waits for
_DELETED = "deleted"
_FRESH = 0.1  # seconds
_WARNINGS_FRESH = 5.0  # seconds; they are those of the whole namespace, and most pods run before the first look at them
_PATIENCE = 10.0  # seconds for an answer


def connect_pods(
    cluster: KubernetesPlan, run: str, hosts: Sequence[HostPlan], patience: float
) -> dict[str, PodConnector]:
    """Return connectors to pods, which must answer within ``patience`` s if they run."""
    watch = PodWatch(cluster, f"{RUN_LABEL}={run}", [host.host for host in hosts])
    commands = CommandConnectors(run, patience)

    def connector_to(host: HostPlan) -> PodConnector:
        access = CommandAccess(tuple(kubectl.exec_command(cluster, host.host)), adopts=True)
        return PodConnector(host.host, CommandConnector(commands, host, access), watch, cluster.pending, patience)

    return {host.host: connector_to(host) for host in hosts}


class PodConnector:
    """Connector to the agent in one pod; a replacement of the same name is another."""

    def __init__(self, pod: str, command: CommandConnector, watch: PodWatch, pending: float, patience: float) -> None:
        self._pod = pod
        self._command = command
        self._watch = watch
        self._pending = pending
        self._patience = patience
        self._found: PodState | None = None
        self._tell: Callable[[str, bool], None] = lambda *_: None

    def tell_delay(self, tell: Callable[[str, bool], None]) -> None:
        """Call ``tell``, in the connecting thread, with why a pod waits and if it is held."""
        self._tell = tell

    def open(self) -> CommandLink:
        """Start an agent, once the pod runs; see `AgentConnector`."""
        wait = PodWait(self._pending, self._tell)
        refused_at: float | None = None
        while True:
            state = self._look()
            if state.container and not state.waits_for:
                try:
                    link = self._command.open()
                except LinkError as error:
                    now = time.monotonic()
                    refused_at = now if refused_at is None else refused_at
                    if now - refused_at >= self._patience:
                        raise
                    state = PodState(waits_for="agent", reason=str(error))
                else:
                    self._found = state
                    return link
            if state.waits_for == _DELETED:
                raise LinkError(state.reason)
            if problem := wait.note(state.waits_for, state.reason, state.is_held):
                raise LinkError(problem)
            time.sleep(_POLL)

    def resume(self) -> CommandLink:
        """Reconnect to the agent that was started before; see `AgentConnector`."""
        try:
            return self._command.resume()
        except AgentGoneError as gone:
            raise AgentGoneError(self._end() or str(gone)) from None
        except LinkError:
            if end := self._end():
                raise AgentGoneError(end) from None
            raise

    def end(self) -> None:
        """Do nothing: the command ends with the agent's guard."""
        self._command.end()

    def _look(self) -> PodState:
        try:
            return self._watch.look_at(self._pod)
        except KubectlError as error:
            return PodState(waits_for="kubernetes", reason=f"its state is unknown: {error}")

    def _end(self) -> str:
        """Return why the agent's container has ended; "" if it has not, or if unknown."""
        try:
            state = self._watch.look_at(self._pod)
        except KubectlError:
            return ""
        found = self._found
        if state.container and (found is None or (found.uid, found.container) == (state.uid, state.container)):
            return ""
        if found is None or found.uid == state.uid:
            return state.ended or "its container has ended"
        return "its pod was deleted"


class PodWatch:
    """Caches the state of a run's pods for a moment."""

    def __init__(self, cluster: KubernetesPlan, label: str, pods: Sequence[str]) -> None:
        """Prepare to watch ``pods``; ``label`` selects them, as ``tflaunch/run=NAME``."""
        self._cluster = cluster
        self._label = label
        self._names = tuple(pods)
        self._lock = threading.Lock()
        self._asked_at = float("-inf")
        self._states: dict[str, PodState] = {}
        self._failure = ""
        self._warned_at = time.monotonic()
        self._warnings: list[dict[str, object]] = []

    def look_at(self, pod: str) -> PodState:
        """Return the state of a pod, at most 0.1 s old.

        Raises:
            KubectlError: Kubernetes did not answer, at most 0.1 s ago.
        """
        with self._lock:
            if time.monotonic() - self._asked_at >= _FRESH:
                try:
                    with kubectl.readable_answer():
                        self._states, self._failure = self._ask(), ""
                except KubectlError as error:
                    self._failure = str(error)
                self._asked_at = time.monotonic()
            if self._failure:
                raise KubectlError(self._failure)
            return self._states[pod]

    def _ask(self) -> dict[str, PodState]:
        items = self._list("pods,statefulsets", f"--selector={self._label}")
        states = pod_state.read_pods(items, self._warnings, self._names)
        is_recent = time.monotonic() - self._warned_at < _WARNINGS_FRESH
        if is_recent or all(state.container for state in states.values()):
            return states
        self._warned_at = time.monotonic()
        with suppress(KubectlError):  # the user may not read events
            self._warnings = self._list("events", "--field-selector=type=Warning", "--sort-by=.lastTimestamp")
        return pod_state.read_pods(items, self._warnings, self._names)

    def _list(self, *words: str) -> list[dict[str, object]]:
        found = kubectl.run_for_json(self._cluster, "get", *words, patience=_PATIENCE)
        return list(found.get("items", []))
