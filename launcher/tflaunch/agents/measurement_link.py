"""The launcher's side of measuring tasks of one host: usage, memory, and where their processes are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tflaunch.core import measures
from tflaunch.core.evidence import Evidence, Sampling
from tflaunch.core.measures import HostVitals, Measure
from tflaunch.core.records import read_record
from tflaunch_worker import fields

KINDS = frozenset({"measured", "evidence", "evidence_complete", "vitals"})
"""The kinds of the agent's messages."""


class MeasurementLink:
    """Passes on what one agent measures, except about tasks that it was not asked to start."""

    def __init__(
        self, ask: Callable[..., bool], has_started: Callable[[str, int], bool], ours: Callable[[float], float]
    ) -> None:
        """Tell nothing yet.

        Args:
            ask: sends a message, by kind and fields; returns whether the agent is connected.
            has_started: whether the agent was asked to start this attempt of this task.
            ours: converts a time of the host's monotonic clock to ours, both in seconds.
        """
        self._ask = ask
        self._has_started = has_started
        self._ours = ours
        self._tell_measures: Callable[[dict[str, Measure], float], None] | None = None
        self._tell_evidence: Callable[[Evidence | None], None] | None = None
        self._tell_vitals: Callable[[HostVitals, float], None] | None = None

    def measure(self) -> bool:
        """Request the tasks' usage and progress (see `tell_measures`); return whether the agent is connected."""
        return self._ask("measure")

    def tell_measures(self, tell: Callable[[dict[str, Measure], float], None]) -> None:
        """Call ``tell`` with every reply to `measure`: the live tasks' measures, and when they were taken.

        The time is of our monotonic clock, in seconds.
        """
        self._tell_measures = tell

    def gather_evidence(self, sampling: Sampling) -> bool:
        """Ask where the processes of the tasks are (see `tell_evidence`); return whether the agent is connected."""
        return self._ask("gather_evidence", **sampling.as_json())

    def tell_evidence(self, tell: Callable[[Evidence | None], None]) -> None:
        """Call ``tell`` with each task's evidence of a reply to `gather_evidence`, and with None at its end."""
        self._tell_evidence = tell

    def tell_vitals(self, tell: Callable[[HostVitals, float], None]) -> None:
        """Call ``tell`` with the memory that the agent measures, and when, in seconds of our monotonic clock."""
        self._tell_vitals = tell

    def take(self, message: dict[str, Any], body: bytes) -> None:
        """Take a message of the agent.

        Raises:
            ValueError: it is malformed.
        """
        match message["kind"]:
            case "measured":
                self._take_measures(message)
            case "evidence":
                self._take_evidence(message)
            case "vitals":
                self._take_vitals(message)
            case "evidence_complete" if self._tell_evidence is not None:
                self._tell_evidence(None)

    def _take_measures(self, message: dict[str, Any]) -> None:
        taken = measures.from_wire(message.get("tasks"))
        moment = self._ours(fields.number(message, "time"))
        known = {task: measure for task, measure in taken.items() if self._has_started(task, measure.attempt)}
        if self._tell_measures is not None:
            self._tell_measures(known, moment)

    def _take_evidence(self, message: dict[str, Any]) -> None:
        evidence = read_record(Evidence, message)
        if self._tell_evidence is not None and self._has_started(evidence.task, evidence.attempt):
            self._tell_evidence(evidence)

    def _take_vitals(self, message: dict[str, Any]) -> None:
        known = read_record(HostVitals, message)
        moment = self._ours(fields.number(message, "time"))
        tasks = {task: one for task, one in known.tasks.items() if self._has_started(task, one.attempt)}
        if self._tell_vitals is not None:
            self._tell_vitals(known._replace(tasks=tasks), moment)
