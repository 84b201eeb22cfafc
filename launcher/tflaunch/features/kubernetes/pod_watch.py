"""Query the state of a run's pods, once for all threads that wait for them."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tflaunch.features.kubernetes import kubectl, pod_state
from tflaunch.features.kubernetes.cluster import KubernetesPlan
from tflaunch.features.kubernetes.kubectl import KubectlError
from tflaunch.features.kubernetes.pod_state import PodState

_FRESH = 0.1  # seconds
_WARNINGS_AFTER = 2.0  # seconds; most pods run by then, and need no look at their warnings
_PATIENCE = 10.0  # seconds for an answer
_FOLLOWED = 60  # seconds; should this process be killed, its kubectl ends by itself


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
        self._changed = threading.Condition()
        self._running: dict[str, PodState] = {}
        self._waiting = 0
        self._follower: subprocess.Popen[str] | None = None

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

    @contextmanager
    def following(self) -> Iterator[None]:
        """Let Kubernetes report the pods that start to run, for all threads that are in this context."""
        with self._changed:
            self._waiting += 1
            if self._waiting == 1:
                self._start_to_follow()
        try:
            yield
        finally:
            with self._changed:
                self._waiting -= 1
                if self._waiting == 0 and self._follower is not None:
                    self._follower.kill()  # TERM does not end it if it is stopped
                    self._follower.wait()  # no limit: it gets KILL

    def wait_until_runs(self, pod: str, seconds: float) -> PodState | None:
        """Return the state of a pod once Kubernetes reports that it runs; None if it does not within that time."""
        with self._changed:
            self._changed.wait_for(lambda: pod in self._running, seconds)
            return self._running.pop(pod, None)

    def _start_to_follow(self) -> None:
        words = ("get", "pods", f"--selector={self._label}", "--watch", "--output=json")
        self._running.clear()
        self._follower = kubectl.follow(self._cluster, *words, f"--request-timeout={_FOLLOWED}s")
        if self._follower is not None:
            threading.Thread(target=self._take_reports, args=[self._follower], daemon=True).start()

    def _take_reports(self, follower: subprocess.Popen[str]) -> None:
        """Read pods, each as JSON on several lines of which the last one is ``}``."""
        assert follower.stdout is not None
        printed: list[str] = []
        with follower.stdout:
            for line in follower.stdout:
                printed.append(line)
                if line == "}\n":
                    self._take_report("".join(printed))
                    printed.clear()

    def _take_report(self, printed: str) -> None:
        try:
            with kubectl.readable_answer():
                pod = kubectl.parse_answer("get", printed)
                name = pod["metadata"]["name"]
                state = pod_state.read_pods([pod], [], [name])[name]
        except KubectlError:
            return  # `look_at` tells
        with self._changed:
            self._running.pop(name, None)
            if state.container and not state.waits_for:
                self._running[name] = state
                self._changed.notify_all()

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
