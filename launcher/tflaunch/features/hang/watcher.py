"""Find out where tasks are: on request, if they do not listen, and if they hang."""

from collections.abc import Mapping
from typing import Any

from tflaunch.core import policy
from tflaunch.core.annotations import HangExplained, StartExplained
from tflaunch.core.job_state import Job, Phase
from tflaunch.explain.run_status import Status
from tflaunch.features.hang import hang
from tflaunch.features.hang.evidence import Evidence
from tflaunch.features.hang.evidence_collector import Collector
from tflaunch.features.hang.silence_watch import SilenceWatch
from tflaunch.records import as_json
from tflaunch.runtime.control_server import Caller
from tflaunch.runtime.watchers import Supervision, Watcher
from tflaunch_worker.readable import printable


class HangWatcher(Watcher):
    """Asks the agents of one run where its tasks are."""

    def __init__(self, supervision: Supervision) -> None:
        super().__init__(supervision)
        self._mailbox = supervision.mailbox
        self._evidence = Collector(supervision.sessions, self._mailbox, "gather_evidence")
        self._silence: SilenceWatch | None = None

    def watch(self, job: Job, now: float) -> None:
        """Explain hangs for which tasks are stopped, and tasks that do not listen in time."""
        before, self.job = self.job, job
        if job.formation.was_warned and not before.formation.was_warned and policy.waited_for(job):
            self._evidence.collect(self._explain_start)
        has_stopped = job.phase is Phase.STOPPING and before.phase is not Phase.STOPPING
        if has_stopped and job.culprit is not None and policy.has_hung(job.culprit) and job.culprit.name != "stall":
            current = self.supervision.status()  # as it is now: when the agents have answered, tasks may be gone
            self._evidence.collect(lambda evidence, _: self._explain(current, evidence))
        if self._silence is None and job.phase is Phase.RUNNING:
            sentence, attempt, _ = self.known.noticed
            is_noticed = bool(sentence) and attempt == job.attempt
            self._silence = SilenceWatch(self.supervision._replace(job=job), is_noticed=is_noticed)
        if self._silence is not None:
            self._silence.take(job, now)

    def _explain(self, current: Status, evidence: Mapping[str, Evidence]) -> None:
        verdict = hang.verdict(current, evidence, is_over=True)
        if verdict.culprits:
            self._mailbox.put(HangExplained(printable(verdict.sentence)))

    def _explain_start(self, evidence: Mapping[str, Evidence], silent_hosts: tuple[str, ...]) -> None:
        if policy.waited_for(self.job):
            sentence = hang.explain_late_start(self.job, self.supervision.status(), evidence)
            self._mailbox.put(StartExplained(self.job.attempt, printable(sentence)))

    def answer(self, caller: Caller, message: dict[str, Any]) -> None:
        """Send each task's evidence as a message (maybe long), then the run's status."""

        def tell(evidence: Mapping[str, Evidence], silent_hosts: tuple[str, ...]) -> None:
            for each in evidence.values():
                caller.say("evidence", **as_json(each))
            silent = list(silent_hosts)
            self.supervision.measured(lambda current: caller.say("done", status=as_json(current), silent_hosts=silent))

        self._evidence.collect(tell)
