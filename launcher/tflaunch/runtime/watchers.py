"""Call what features do while a run is supervised."""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from tflaunch import feature_faults
from tflaunch.agents.session import Session
from tflaunch.core.annotations import NOTHING, Annotations, FeatureFailed
from tflaunch.core.events import HostRefused
from tflaunch.core.job_state import Job, Phase
from tflaunch.errors import TflaunchError
from tflaunch.explain.run_status import Status
from tflaunch.feature import ALWAYS, Watching, features, load
from tflaunch.mailbox import Mailbox
from tflaunch.runtime.control_server import Caller, RefusedError
from tflaunch.runtime.loop import Run
from tflaunch.runtime.run_config import RunConfig
from tflaunch.store.journal import Journal

_T = TypeVar("_T")


class Supervision(NamedTuple):
    """What a watcher may use of the supervision of its run.

    Args:
        job: the job as it is when the watcher is made.
        config: how the run is supervised, with its directory.
        journal: the run's journal.
        mailbox: the supervisor's, whose thread calls watchers.
        sessions: the session with each host.
        say: shows a message to the user.
        status: returns the run's status.
        measured: calls its argument with the status after another measurement of the tasks.
    """

    job: Job
    config: RunConfig
    journal: Journal
    mailbox: Mailbox
    sessions: Mapping[str, Session]
    say: Callable[[str], None]
    status: Callable[[], Status]
    measured: Callable[[Callable[[Status], None]], None]


class Findings(NamedTuple):
    """What watchers add to the end of a run: lines before and after its summary."""

    notes: Sequence[str] = ()
    results: Sequence[str] = ()


class Watcher:
    """The base of watchers: keeps the job that it gets, and does nothing."""

    def __init__(self, supervision: Supervision) -> None:
        """Take part in the supervision of a run; may raise `TflaunchError`."""
        self.supervision = supervision
        self.job = supervision.job
        self.known = NOTHING

    def begin(self) -> None:
        """Begin what takes time, before the agents of a new run are reached."""

    def watch(self, job: Job, now: float) -> None:
        """Take the job's state after a step at time ``now``."""
        self.job = job

    def answer(self, caller: Caller, message: dict[str, Any]) -> None:
        """Answer a request of a kind that the feature declares.

        Raises:
            RefusedError: it cannot be fulfilled.
            ValueError: it is malformed.
        """

    def recall(self, records: list[dict[str, Any]]) -> None:
        """Take the journal's records after the first: an earlier supervisor was killed."""

    def finish(self, run: Run) -> Findings | None:
        """Do what is left to do when the last output has arrived and the agents have left."""
        return None

    def take_annotations(self, known: Annotations) -> None:
        """Take what is known after another annotation."""
        self.known = known

    def tell_end(self, job: Job, known: Annotations, state: str, rest: Iterable[str]) -> None:
        """Take the end of the run: its state, and the lines that follow its summary."""

    def close(self) -> None:
        """End: the run is over."""

    def follow_up(self, say: Callable[[str], None]) -> None:
        """Act on the ended run, whose records are closed; ``say`` shows a message."""


class Watchers:
    """Watchers of a run: some from its start on, some from their first request on.

    A feature whose watcher raises an error is left out for the rest of the run, with all of its watchers.
    """

    def __init__(self, supervision: Supervision) -> None:
        """Make those that are wanted.

        Raises:
            TflaunchError: one of them cannot do what was asked for.
        """
        self._supervision = supervision
        self._thread = threading.current_thread()
        self._made: dict[Watching, Watcher] = {}
        self._feature_of = {watching: name for name, feature in features().items() for watching in feature.watchers}
        self._answering = {kind: watching for watching in self._feature_of for kind in watching.requests}
        feature_faults.tell_with(self._take_fault)
        for watching, feature in self._feature_of.items():
            with feature_faults.isolated(feature, TflaunchError):
                if self._is_wanted_by(watching.wanted_by):
                    self._find(watching)

    def _is_wanted_by(self, name: str) -> bool:
        """Return whether a run has what a watcher waits for, see `Watching`."""
        plan, config = self._supervision.job.original, self._supervision.config
        is_asked = name in (ALWAYS, plan.host_maker, *config.extras)
        return bool(name) and (is_asked or any(getattr(holder, name, None) for holder in (plan, config)))

    def _find(self, watching: Watching) -> Watcher:
        if watching not in self._made:
            self._made[watching] = load(watching.place)(self._supervision)
        return self._made[watching]

    def each(self, moment: Callable[[Watcher], _T], *expected: type[Exception]) -> list[_T]:
        """Return each watcher's answer to a call; leave out one that raises unexpectedly."""
        answers = []
        for watching, watcher in tuple(self._made.items()):
            with feature_faults.isolated(self._feature_of[watching], *expected):
                answers.append(moment(watcher))
        return answers

    def _take_fault(self, feature: str, reason: str) -> None:
        """Leave out a feature from now on, and say and record why. Called in any thread."""
        if threading.current_thread() is not self._thread:
            self._supervision.mailbox.call(lambda: self._take_fault(feature, reason))
            return
        self._say_fault(feature, reason)
        job, failed = self._supervision.job, FeatureFailed(feature, reason)
        if job.phase is Phase.ENDED:
            self._supervision.journal.record(failed, [], self._supervision.mailbox.now())
        else:
            self._supervision.mailbox.put(failed)
        left = [watching for watching in self._made if self._feature_of[watching] == feature]
        for watcher in [self._made.pop(watching) for watching in left]:
            with feature_faults.isolated(feature):
                watcher.close()
        self._refuse_needs(job)

    def _say_fault(self, feature: str, reason: str) -> None:
        self._supervision.say(f"warning: {self._sentence(feature, reason)}")

    def _sentence(self, feature: str, reason: str) -> str:
        is_awaited = any(each.prepares for each, name in self._feature_of.items() if name == feature)
        return feature_faults.sentence(feature, reason, "" if is_awaited else self._supervision.job.run)

    def _refuse_needs(self, job: Job) -> None:
        """Refuse what hosts wait for if the feature is left out that prepares it."""
        left_out = feature_faults.left_out()
        for watching, feature in self._feature_of.items() if left_out else ():
            if feature in left_out and watching.prepares and job.hosts.count(watching.prepares):
                sentence = f"the feature {feature} has failed: {left_out[feature]}"
                for host in [name for name, state in job.hosts.items() if watching.prepares in state.awaits]:
                    self._supervision.mailbox.put(HostRefused(host, watching.prepares, sentence))

    def watch(self, job: Job, now: float) -> None:
        """Show the job's state after a step to all."""
        self._supervision = self._supervision._replace(job=job)
        self.each(lambda watcher: watcher.watch(job, now))
        self._refuse_needs(job)

    def answer(self, caller: Caller, message: dict[str, Any]) -> bool:
        """Return whether a feature has answered a request; raises as `Watcher.answer`."""
        watching = self._answering.get(message["kind"])
        if watching is None:
            return False
        feature = self._feature_of[watching]
        with feature_faults.isolated(feature, RefusedError, ValueError):
            if feature not in feature_faults.left_out():
                self._find(watching).answer(caller, message)
        if reason := feature_faults.left_out().get(feature):
            raise RefusedError(self._sentence(feature, reason))
        return True

    def finish(self, run: Run) -> Findings:
        """Let all do what is left to do, and return what they have found."""
        findings = [each for each in self.each(lambda watcher: watcher.finish(run)) if each is not None]
        notes = [note for each in findings for note in each.notes]
        results = [line for each in findings for line in each.results]
        return Findings(notes, results)

    def close(self) -> None:
        """End all."""
        feature_faults.tell_with(self._say_fault)  # the last record is written
        self.each(lambda watcher: watcher.close())

    def follow_up(self, say: Callable[[str], None]) -> None:
        """Let all do what the end of the run makes possible."""
        self._supervision = self._supervision._replace(say=say)
        self.each(lambda watcher: watcher.follow_up(say))
