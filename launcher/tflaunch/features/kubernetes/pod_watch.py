"""Query the state of a run's pods, once for all threads that wait for them."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from tflaunch.features.kubernetes import kubectl, pod_state
from tflaunch.features.kubernetes.kubectl import KubectlError
from tflaunch.features.kubernetes.pod_state import PodState
from tflaunch.plan.model import KubernetesPlan

_FRESH = 0.1  # seconds
_WARNINGS_AFTER = 2.0  # seconds; most pods run by then, and need no look at their warnings
_PATIENCE = 10.0  # seconds for an answer


class PodWatch:
    """Caches the state of a run's pods for a moment."""

    def __init__(self, cluster: KubernetesPlan, label: str, pods: Sequence[str]) -> None:
        """Prepare to ask; ``pods`` are names of pods with a label, such as ``tflaunch/run=NAME``."""
        self._cluster = cluster
        self._label = label
        self._names = tuple(pods)
        self._begun = time.monotonic()
        self._lock = threading.Lock()
        self._asked_at = float("-inf")
        self._states: dict[str, PodState] = {}
        self._failure = ""

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
        states = pod_state.read_pods(items, [], self._names)
        is_early = time.monotonic() - self._begun < _WARNINGS_AFTER
        if is_early or all(state.container for state in states.values()):
            return states
        try:
            warnings = self._list("events", "--field-selector=type=Warning", "--sort-by=.lastTimestamp")
        except KubectlError:
            return states  # the user may not read events
        return pod_state.read_pods(items, warnings, self._names)

    def _list(self, *words: str) -> list[dict[str, object]]:
        found = kubectl.run_for_json(self._cluster, "get", *words, patience=_PATIENCE)
        return list(found.get("items", []))
