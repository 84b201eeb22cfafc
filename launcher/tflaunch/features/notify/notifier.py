"""Run the user's command exactly once for each occurrence in a job.

An occurrence has a name that follows from the job's state, so that a supervisor that takes over finds the same ones.
The command's process claims the occurrence by creating a file of that name before it becomes the command. So a
supervisor that was killed between starting the command and recording that leaves neither a gap nor a second
notification.
"""

import os
import subprocess
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tflaunch import private_files
from tflaunch.core import policy, replay
from tflaunch.core.annotations import NOTHING, Annotations
from tflaunch.core.job_state import Job, Phase
from tflaunch.explain import causes, summary
from tflaunch.explain.messages import away_words
from tflaunch.runtime.watchers import Supervision, Watcher
from tflaunch.store.log_writer import tail
from tflaunch_worker.readable import duration_words, exit_words

LOG_NAME = "notify.log"
"""The output of the commands, in the run's directory."""
RECORD_KIND = "notified"
"""The kind of the journal's record of a notification."""
PATIENCE = 5.0
"""Maximum seconds by which the commands may delay the end of a run."""

_CLAIMS = "notified"
_CLAIM = """
claim=$1
shift
set -C  # a file that exists is not opened
{ true >"$claim"; } 2>/dev/null || { test -e "$claim"; exit; }
exec "$@"
"""
_LONGEST_VARIABLE = 32 * 1024
_APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
_ENDS = {"succeeded": "done", "failed": "failed"}


class Occurrence(NamedTuple):
    """An occurrence: a value of `notify.on`, a name unique in the run, a text."""

    kind: str
    name: str
    text: str


def occurrences(before: Job, after: Job, known: Annotations = NOTHING) -> Iterator[Occurrence]:
    """Yield the occurrences between two states of a job, apart from its end."""
    before = known.explained(before)
    if after.phase is Phase.WAITING_FOR_HOSTS is not before.phase:
        yield Occurrence("waiting", f"waiting-{after.attempt}", f"waiting for {away_words(after)}")
    if after.attempt != before.attempt:
        why = "" if before.culprit is None else f": {causes.describe(before.culprit, before.plan)}"
        yield Occurrence("restarted", f"restarted-{after.attempt}", f"{summary.restart_name(after)}{why}")
    elif after.phase is before.phase is Phase.RUNNING:
        for process in policy.waiting(before):
            task = after.tasks[process.task]
            if task.attempt != before.tasks[process.task].attempt:
                name = f"restarted-{task.task.replace(':', '-')}-{task.attempt}"
                yield Occurrence("restarted", name, f"{task.task} restarts alone (attempt {task.attempt})")


def end_of(job: Job, state: str, logs: Path, known: Annotations, rest: Iterable[str] = ()) -> list[Occurrence]:
    """Return the occurrence of the end of a job, none if it was stopped by the user.

    ``rest`` follows the summary.
    """
    if state not in _ENDS:
        return []
    text = summary.summary(job, str(logs), lambda task, lines: tail(logs, task, lines), known=known)
    return [Occurrence(_ENDS[state], "end", "\n".join([text, *rest]))]


class Notifier(Watcher):
    """Notifies the user of what happens to one run."""

    def __init__(self, supervision: Supervision) -> None:
        """Watch the job of a plan that has ``notify`` from its first state on."""
        super().__init__(supervision)
        assert self.job.original.notify is not None
        self._plan = self.job.original.notify
        self._path = supervision.config.directory.path
        self._say = supervision.say
        self._names: set[str] = set()  # of the occurrences that the user knows
        self._running: list[subprocess.Popen[bytes]] = []

    def recall(self, records: list[dict[str, Any]]) -> None:
        """Send what an earlier supervisor did not, given the records after the first."""
        self._names = {record["name"] for record in records if record["kind"] == RECORD_KIND}
        for transition in replay.transitions(self.job, records):
            self.watch(transition.job, transition.now)

    def watch(self, job: Job, now: float) -> None:
        """Notify of what has happened in one step."""
        before, self.job = self.job, job
        if job is not before:
            self.notify(occurrences(before, job, self.known))

    def take_annotations(self, known: Annotations) -> None:
        """Take what is known after another annotation."""
        self.known = known
        if sentence := known.noticed_of(self.job):
            self.notify([Occurrence("stalled", f"stalled-{self.job.attempt}", sentence)])

    def tell_end(self, job: Job, known: Annotations, state: str, rest: Iterable[str]) -> None:
        """Notify of the end of the run."""
        self.notify(end_of(job, state, self.supervision.config.directory.logs, known, rest))

    def notify(self, found: Iterable[Occurrence]) -> None:
        """Notify of those occurrences that the spec names, unless it was done before."""
        for occurrence in found:
            if occurrence.kind in self._plan.on and occurrence.name not in self._names:
                self._names.add(occurrence.name)
                try:
                    self._running.append(self._start(occurrence))
                    self.supervision.journal.note(RECORD_KIND, name=occurrence.name)
                except OSError as error:
                    self._say(f"warning: notify.exec: {error.filename or self._plan.exec[0]}: {error.strerror}")

    def _start(self, occurrence: Occurrence) -> subprocess.Popen[bytes]:
        """Start a process that becomes the command once it has claimed the occurrence."""
        claims = self._path / _CLAIMS
        private_files.make_directories(claims)
        text = claims / f"{occurrence.name}.txt"
        private_files.write_text(text, occurrence.text + "\n")
        code = "" if self.job.exit_code is None else str(self.job.exit_code)
        about = {"EVENT": occurrence.kind, "RUN": self.job.run, "JOB": self.job.plan.name, "EXIT_CODE": code}
        summary_text = occurrence.text.replace("\0", "").encode("utf-8", "replace")[:_LONGEST_VARIABLE]
        about["SUMMARY"] = summary_text.decode("utf-8", "ignore")
        env = {**os.environ, **{f"TFLAUNCH_{name}": value for name, value in about.items()}}
        log = os.open(self._path / LOG_NAME, _APPEND, 0o600)
        try:
            with text.open("rb") as stdin:
                return subprocess.Popen(
                    ["/bin/sh", "-c", _CLAIM, "sh", str(claims / occurrence.name), *self._plan.exec],
                    cwd=self._plan.directory,
                    env=env,
                    stdin=stdin,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,  # it outlives a supervisor that is killed
                )
        finally:
            os.close(log)

    def close(self) -> None:
        """Wait at most `PATIENCE` for all commands, and report failed ones."""
        until = time.monotonic() + PATIENCE
        for process in self._running:
            try:
                code = process.wait(max(until - time.monotonic(), 0.0))
            except subprocess.TimeoutExpired:
                self._say(f"warning: notify.exec still runs after {duration_words(PATIENCE)}, and is not waited for")
                return
            if code:
                self._say(f"warning: notify.exec {exit_words(code)}; its output is in {self._path / LOG_NAME}")
