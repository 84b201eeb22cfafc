"""Reach hosts that are pods, through `kubectl exec`, once Kubernetes has made them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from tflaunch.features.kubernetes import kubectl
from tflaunch.features.kubernetes.cluster import KubernetesPlan
from tflaunch.features.kubernetes.kubectl import RUN_LABEL, KubectlError
from tflaunch.features.kubernetes.pod_state import PodState
from tflaunch.features.kubernetes.pod_watch import PodWatch
from tflaunch.plan.model import HostPlan
from tflaunch.transport.base import AgentGoneError, LinkError
from tflaunch.transport.command import CommandAccess, CommandConnector, CommandConnectors, CommandLink
from tflaunch_worker.readable import duration_words

_POLL = 1.0  # seconds between looks at what a pod waits for
_REPORT_AFTER = 1.0  # seconds for which a pod waits for the same thing before that is reported
_DELETED = "deleted"


class PodConnectors:
    """Creates the connectors for all pods of one run."""

    def __init__(self, cluster: KubernetesPlan, run: str, hosts: Sequence[HostPlan], patience: float) -> None:
        """Prepare what the connectors share.

        Args:
            cluster: where the pods are.
            run: the run's name.
            hosts: the pods.
            patience: the timeout for reaching a pod that runs, in seconds.
        """
        self._cluster = cluster
        self._watch = PodWatch(cluster, f"{RUN_LABEL}={run}", [host.host for host in hosts])
        self._commands = CommandConnectors(run, patience)
        self._patience = patience

    def connector_to(self, host: HostPlan) -> PodConnector:
        """Return the connector for a pod."""
        access = CommandAccess(tuple(kubectl.exec_command(self._cluster, host.host)), adopts=True)
        command = CommandConnector(self._commands, host, access)
        return PodConnector(host.host, command, self._watch, self._cluster.pending, self._patience)


class PodConnector:
    """Reaches the agent in one pod. The pod that replaces a deleted one has its name, but counts as another."""

    def __init__(self, pod: str, command: CommandConnector, watch: PodWatch, pending: float, patience: float) -> None:
        self._pod = pod
        self._command = command
        self._watch = watch
        self._pending = pending
        self._patience = patience
        self._found: PodState | None = None
        self._tell: Callable[[str], None] = _ignore

    def tell_delay(self, tell: Callable[[str], None]) -> None:
        """Call ``tell``, in the thread that connects, with the reason why a pod does not run yet."""
        self._tell = tell

    def open(self) -> CommandLink:
        """Start an agent, once the pod runs; see `AgentConnector`."""
        with self._watch.following():
            return self._open()

    def _open(self) -> CommandLink:
        waiting = _Waiting(self._tell)
        end = time.monotonic() + self._pending
        refused_at: float | None = None
        while True:
            state = self._watch.wait_until_runs(self._pod, _POLL) or self._look()
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
            if time.monotonic() >= end:
                within = duration_words(self._pending)
                raise LinkError(f"{state.reason}; it did not run within {within} (kubernetes.pending)")
            waiting.note(state)

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
        """Return why the container in which the agent ran has ended; "" if it has not, or that is unknown."""
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


def _ignore(reason: str) -> None:
    """Do nothing."""


class _Waiting:
    """Reports what a pod waits for, once it has waited for the same thing for some time."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._waits_for = ""
        self._since = time.monotonic()
        self._reported: set[str] = set()

    def note(self, state: PodState) -> None:
        """Take the state of the pod now."""
        if state.waits_for != self._waits_for:
            self._waits_for, self._since = state.waits_for, time.monotonic()
        if self._waits_for not in self._reported and time.monotonic() - self._since >= _REPORT_AFTER:
            self._reported.add(self._waits_for)
            self._tell(state.reason)
