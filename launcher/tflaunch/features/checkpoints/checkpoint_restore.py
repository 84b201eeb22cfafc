"""Put the newest checkpoint on the hosts on which the tasks of an attempt start."""

import time
from collections.abc import Callable, Mapping
from functools import partial

from tflaunch.clusterspec import templates
from tflaunch.core.annotations import CheckpointNotCopied
from tflaunch.core.events import HostPrepared, HostRefused
from tflaunch.core.job_state import Job
from tflaunch.core.policy import in_gang
from tflaunch.core.states import CHECKPOINT, HostPhase
from tflaunch.features.checkpoints.checkpoint_copies import CheckpointCopies, KeptCheckpoint
from tflaunch.features.checkpoints.checkpoint_link import CheckpointLink
from tflaunch.mailbox import Mailbox
from tflaunch.plan import placeholders
from tflaunch.plan.model import TaskPlan
from tflaunch_worker.readable import printable

_MOST_ROUNDS = 3  # times that a host is sent what it lacks


class Restore:
    """The search for an attempt's newest checkpoint, and its transfer to the hosts.

    Candidates are the copies of the run, and what is on the host on which the task that writes ran last: it may have
    saved just before it failed. Before the first attempt of a run, all hosts are asked, which may have checkpoints of
    earlier runs.
    """

    def __init__(
        self,
        job: Job,
        writer: str | None,
        links: Mapping[str, CheckpointLink],
        copies: CheckpointCopies,
        mailbox: Mailbox,
        keep: Callable[[KeptCheckpoint], KeptCheckpoint | None],
        note_host: Callable[[KeptCheckpoint, str], None],
    ) -> None:
        """Prepare it for the hosts that await a checkpoint.

        ``writer`` is the host of the task that wrote last, None if unknown; ``keep`` keeps a checkpoint whose files
        have arrived, and ``note_host`` notes that a host has one.
        """
        self.attempt = job.attempt
        self._job = job
        self._links = links
        self._copies = copies
        self._mailbox = mailbox
        self._keep = keep
        self._note_host = note_host
        self._sources = self._hosts_to_ask(writer)
        self._asked: set[str] = set()
        self._found: dict[str, KeptCheckpoint | None] = {}
        self._fetched_from: str | None = None
        self._is_chosen = False
        self._choice: KeptCheckpoint | None = None
        self._placing: set[str] = set()
        self._told: set[str] = set()

    def go_on(self, job: Job) -> None:
        """Do what is possible now."""
        self._job = job
        for host in self._sources:
            if host not in self._asked and host not in self._found and self._is_connected(host):
                self._ask(host)
        if not self._is_chosen:
            self._choose()
        if self._is_chosen:
            for host in self._awaiting():
                if host not in self._told and host not in self._placing and self._is_connected(host):
                    self._place(host, _MOST_ROUNDS)

    def lose(self, host: str) -> None:
        """Forget what was asked of a host: its link is lost."""
        self._asked.discard(host)
        self._found.pop(host, None)
        self._placing.discard(host)
        if self._fetched_from == host:
            self._fetched_from = None

    def _is_connected(self, host: str) -> bool:
        return self._job.hosts[host].phase is HostPhase.CONNECTED

    def _awaiting(self) -> list[str]:
        return [host.host for host in self._job.hosts.values() if CHECKPOINT in host.awaits]

    # ---- which one

    def _hosts_to_ask(self, writer: str | None) -> list[str]:
        job = self._job
        if not job.has_started:
            return self._awaiting()
        if writer is None and job.checkpoint is not None:
            writer = job.checkpoint.writer
        task = writer_of(job)
        if writer is None and task is not None:
            writer = task.host
        return [] if writer is None else [writer]

    def _ask(self, host: str) -> None:
        job, task = self._job, writer_of(self._job)
        workdirs = workdirs_on(job, host)
        if task is not None and (not workdirs or task.host == host):
            workdirs = [workdir_of(job, task)]
        self._asked.add(host)
        self._links[host].find(workdirs[0], directory_of(job), "", partial(self._take, host), wait=False)

    def _take(self, host: str, found: KeptCheckpoint | None, mark: str, problem: str) -> None:
        self._asked.discard(host)
        self._found[host] = None
        if problem:
            self._warn(host, problem)
        elif found is not None:
            known = self._copies.find(found.files)
            self._found[host] = found if known is None else found._replace(written_at=known.written_at)
        self.go_on(self._job)

    def _choose(self) -> None:
        """Choose the newest checkpoint once all hosts not down answered; fetch if needed."""
        if self._fetched_from is not None:
            return
        waited_for = [host for host in self._sources if self._job.hosts[host].phase is not HostPhase.DOWN]
        if any(host not in self._found for host in waited_for):
            return
        candidates = [found for found in self._found.values() if found is not None]
        newest = max(candidates, key=lambda each: each.written_at, default=None)
        kept = self._copies.newest
        if newest is None or (kept is not None and kept.written_at >= newest.written_at):
            self._is_chosen, self._choice = True, kept
        elif self._awaiting() == [newest.writer]:
            self._is_chosen, self._choice = True, newest  # it is where it is needed; copies are made later
        else:
            self._fetch(newest)

    def _fetch(self, newest: KeptCheckpoint) -> None:
        host = newest.writer

        def fetched(problem: str) -> None:
            self._fetched_from = None
            kept = None if problem else self._keep(newest)
            if kept is None:
                self._found[host] = None  # the next one is older
                if problem:
                    self._warn(host, problem)
            else:
                self._is_chosen, self._choice = True, kept
            self.go_on(self._job)

        self._fetched_from = host
        self._links[host].fetch(self._copies, newest.files, fetched)

    def _warn(self, host: str, problem: str) -> None:
        self._mailbox.put(CheckpointNotCopied(host, printable(problem)))

    # ---- where it is needed

    def _place(self, host: str, rounds: int) -> None:
        """Have a host put the checkpoint into its place, after it was sent what it lacks."""
        checkpoint = self._choice
        if checkpoint is None:
            self._told.add(host)
            self._mailbox.put(HostPrepared(host, CHECKPOINT))
            return
        self._placing.add(host)
        link, files = self._links[host], checkpoint.files

        def placed(missing: Mapping[str, int], problem: str) -> None:
            if problem or (missing and not rounds):
                self._refuse(host, problem or "it loses the files of the checkpoint")
            elif missing:
                link.send(self._copies, files, missing, sent)
            else:
                self._placing.discard(host)
                self._told.add(host)
                self._note_host(checkpoint, host)
                self._mailbox.put(HostPrepared(host, CHECKPOINT, printable(checkpoint.name), checkpoint.step))

        def sent(problem: str) -> None:
            if problem:
                self._refuse(host, problem)
            else:
                self._place(host, rounds - 1)

        age = max(time.time() - checkpoint.written_at, 0.0)
        workdirs = workdirs_on(self._job, host)
        link.place(workdirs, directory_of(self._job), files, age, placed)

    def _refuse(self, host: str, problem: str) -> None:
        self._placing.discard(host)
        self._told.add(host)
        self._mailbox.put(HostRefused(host, CHECKPOINT, printable(problem)))


def writer_of(job: Job) -> TaskPlan | None:
    """Return the task that writes the checkpoints of a job: chief, or first worker."""
    return next((task for task in job.plan.tasks if task.role in ("chief", "worker")), None)


def workdirs_on(job: Job, host: str) -> list[str]:
    """Return the working directories of the gang's tasks on a host."""
    tasks = [task for task in job.plan.tasks if in_gang(task) and task.host == host]
    return list(dict.fromkeys(workdir_of(job, task) for task in tasks))


def workdir_of(job: Job, task: TaskPlan) -> str:
    """Return the working directory of a task in the current attempt."""
    return placeholders.fill(task, job.plan, job.run, str(job.attempt)).workdir


def directory_of(job: Job) -> str:
    """Return the checkpoint directory, absolute or relative to working directories."""
    assert job.plan.checkpoints is not None
    return placeholders.filled(job.plan.checkpoints.dir, {templates.RUN: job.run})
