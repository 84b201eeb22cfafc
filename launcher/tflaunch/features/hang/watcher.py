"""Find out where tasks are: on request, and if they hang or do not listen in time."""

from __future__ import annotations

from typing import Any

from tflaunch import records
from tflaunch.core import policy
from tflaunch.core.annotations import HangExplained, StartExplained
from tflaunch.core.job_state import Job, Phase
from tflaunch.explain.run_status import Status
from tflaunch.features.hang import hang
from tflaunch.features.hang.evidence_collector import EvidenceCollector, Findings
from tflaunch.runtime.control_server import Caller
from tflaunch.runtime.watchers import Supervision, Watcher
from tflaunch_worker.printable import printable


class HangWatcher(Watcher):
    """Asks the agents of one run where its tasks are."""

    def __init__(self, supervision: Supervision) -> None:
        self._supervision = supervision
        self._job = supervision.job
        self._evidence = EvidenceCollector(supervision.sessions, supervision.mailbox)

    def watch(self, job: Job, now: float) -> None:
        """Explain hangs for which tasks are stopped, and tasks that do not listen in time."""
        is_late = job.formation.was_warned and not self._job.formation.was_warned
        has_stopped = job.phase is Phase.STOPPING and self._job.phase is not Phase.STOPPING
        self._job = job
        if is_late and policy.waited_for(job):
            self._evidence.collect(self._explain_start)
        if has_stopped and job.culprit is not None and policy.has_hung(job.culprit):
            current = self._supervision.status()  # as it is now: when the agents have answered, tasks may be gone
            limit = job.culprit.name
            self._evidence.collect(lambda found: self._explain(current, found, limit))

    def _explain(self, current: Status, found: Findings, limit: str) -> None:
        verdict = hang.verdict(current, found.evidence, limit)
        if verdict.culprits:
            self._supervision.mailbox.put(HangExplained(printable(verdict.sentence)))

    def _explain_start(self, found: Findings) -> None:
        if policy.waited_for(self._job):
            sentence = hang.explain_late_start(self._job, self._supervision.status(), found.evidence)
            self._supervision.mailbox.put(StartExplained(self._job.attempt, printable(sentence)))

    def answer(self, caller: Caller, message: dict[str, Any]) -> None:
        """Send each task's evidence as a message (maybe long), then the run's status."""

        def tell(found: Findings) -> None:
            for evidence in found.evidence.values():
                caller.say("evidence", **records.as_json(evidence))
            silent = list(found.silent_hosts)
            self._supervision.measured(
                lambda current: caller.say("done", status=current.as_json(), silent_hosts=silent)
            )

        self._evidence.collect(tell)
