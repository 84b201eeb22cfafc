"""Copies of a run's checkpoints on other disks, and on hosts before an attempt.

The host of the task that writes is asked for new checkpoints. Each is fetched into the run's directory, and then sent
to as many other hosts as the plan wants. The job's state says what is to be done, so nothing depends on a link or on
one supervisor: what was asked over a lost link is asked again.
"""

from functools import partial

from tflaunch.core.annotations import CheckpointNotCopied
from tflaunch.core.events import CheckpointCopied
from tflaunch.core.job_state import Job, Phase
from tflaunch.core.states import CHECKPOINT, HostPhase
from tflaunch.errors import describe_os_error
from tflaunch.features.checkpoints.checkpoint_copies import CheckpointCopies, KeptCheckpoint
from tflaunch.features.checkpoints.checkpoint_link import CheckpointLink
from tflaunch.features.checkpoints.checkpoint_restore import Restore, directory_of, workdir_of, writer_of
from tflaunch.runtime.watchers import Supervision, Watcher
from tflaunch.store.run_dir import CHECKPOINTS_NAME
from tflaunch_worker.readable import printable


class CheckpointKeeper(Watcher):
    """Copies the checkpoints of one run."""

    def __init__(self, supervision: Supervision) -> None:
        """Keep copies in the directory of a run whose plan has ``checkpoints``."""
        job, directory = supervision.job, supervision.config.directory.path / CHECKPOINTS_NAME
        assert job.plan.checkpoints is not None
        self._plan = job.plan.checkpoints
        self._copies = CheckpointCopies(directory, self._plan.keep)
        self._job = job
        self._links = {
            host: CheckpointLink(host, session.calls.begin, partial(self._lose, host))
            for host, session in supervision.sessions.items()
        }
        self._mailbox = supervision.mailbox
        self._restore: Restore | None = None
        self._writer: str | None = None
        self._watched: tuple[str, int] | None = None
        self._known: dict[str, str] = {}
        self._fetched_from: str | None = None
        self._sending: dict[str, KeptCheckpoint] = {}
        self._refusing: set[str] = set()
        self._warned: set[str] = set()

    def watch(self, job: Job, now: float) -> None:
        """Do what the job's state asks for."""
        self._job = job
        if job.phase is Phase.PREPARING and job.hosts.count(CHECKPOINT):
            self._prepare()
        elif job.phase is not Phase.PREPARING:
            self._restore = None
        self._forget_dead()
        self._go_on()

    def _go_on(self) -> None:
        if self._job.phase in (Phase.RUNNING, Phase.SAVING):
            self._look()
            self._spread()

    def _forget_dead(self) -> None:
        """Expect no copy on a host that is down: it may return with another disk."""
        newest = self._copies.newest
        if newest is None or not self._job.hosts.count(HostPhase.DOWN):
            return
        left = [host for host in newest.hosts if self._job.hosts[host].phase is not HostPhase.DOWN]
        if len(left) < len(newest.hosts):
            self._note_hosts(newest, left)

    def _lose(self, host: str) -> None:
        """Forget what was asked of a host: its link is lost."""
        self._known.pop(host, None)
        self._sending.pop(host, None)
        self._refusing.discard(host)
        if self._watched is not None and self._watched[0] == host:
            self._watched = None
        if self._fetched_from == host:
            self._fetched_from = None
        if self._restore is not None:
            self._restore.lose(host)

    def _is_connected(self, host: str) -> bool:
        return self._job.hosts[host].phase is HostPhase.CONNECTED

    # ---- while the tasks run

    def _look(self) -> None:
        """Ask for the writing task's next checkpoint, unless the last one is in transfer."""
        task = writer_of(self._job)
        if task is None:
            return
        host = task.host
        asked = host, self._job.attempt
        if self._fetched_from is not None or self._watched == asked or not self._is_connected(host):
            return
        self._writer = host
        workdir = workdir_of(self._job, task)
        directory = directory_of(self._job)
        found = partial(self._found, asked)
        self._watched = asked
        self._links[host].find(workdir, directory, self._known.get(host, ""), found, wait=True)

    def _found(self, asked: tuple[str, int], found: KeptCheckpoint | None, mark: str, problem: str) -> None:
        host = asked[0]
        if self._watched == asked and (mark or not problem):  # else the host cannot look for any in this attempt
            self._watched = None
        self._known[host] = mark
        if found is None:
            if problem:
                self._warn(host, problem)
            self._go_on()
            return

        def fetched(problem: str) -> None:
            self._fetched_from = None
            if problem:
                self._warn(host, problem)
            else:
                self._keep(found)
            self._go_on()

        self._fetched_from = host
        self._links[host].fetch(self._copies, found.files, fetched)

    def _keep(self, checkpoint: KeptCheckpoint) -> KeptCheckpoint | None:
        """Keep a checkpoint whose files have arrived."""
        known = self._copies.find(checkpoint.files)
        if known is not None:
            self._note_host(known, checkpoint.writer)
            return known
        try:
            kept = self._copies.add(checkpoint)
        except OSError as error:
            self._warn(checkpoint.writer, describe_os_error(error))
            return None
        self._refusing.clear()
        self._warned.discard(checkpoint.writer)
        self._tell(kept)
        return kept

    def _note_host(self, checkpoint: KeptCheckpoint, host: str) -> None:
        current = next((each for each in self._copies.kept if each.place == checkpoint.place), None)
        if current is not None and host not in current.hosts:
            self._note_hosts(current, [*current.hosts, host])

    def _note_hosts(self, checkpoint: KeptCheckpoint, hosts: list[str]) -> None:
        self._copies.note_hosts(checkpoint, hosts)
        if self._copies.newest is not None and self._copies.newest.place == checkpoint.place:
            self._tell(self._copies.newest)

    def _tell(self, kept: KeptCheckpoint) -> None:
        self._mailbox.put(CheckpointCopied(kept.writer, printable(kept.name), kept.step, " ".join(kept.hosts)))

    def _warn(self, host: str, problem: str) -> None:
        """Say that a copy is missing, once until one is made again."""
        if host in self._warned:
            return
        self._warned.add(host)
        self._mailbox.put(CheckpointNotCopied(host, printable(problem)))

    # ---- copies on other hosts

    def _spread(self) -> None:
        """Send the newest checkpoint to further hosts, until `copies` hosts have it."""
        newest = self._copies.newest
        if newest is None:
            return
        under_way = sum(each.place == newest.place for each in self._sending.values())
        lacking = self._plan.copies - len(newest.hosts) - under_way
        order = list(self._links)
        start = 1 + order.index(newest.writer) if newest.writer in order else 0
        for host in [*order[start:], *order[:start]] if lacking > 0 else []:
            is_free = host not in newest.hosts and host not in self._sending and host not in self._refusing
            if lacking > 0 and is_free and self._is_connected(host):
                lacking -= 1
                self._send(host, newest)

    def _send(self, host: str, checkpoint: KeptCheckpoint) -> None:
        def sent(problem: str) -> None:
            del self._sending[host]
            if problem:
                self._refusing.add(host)
                self._warn(host, problem)
            else:
                self._warned.discard(host)
                self._note_host(checkpoint, host)
            self._go_on()

        digests = list(dict.fromkeys(file.sha256 for kept in self._copies.kept for file in kept.files))
        self._sending[host] = checkpoint
        self._links[host].store(self._copies, checkpoint.files, digests, sent)

    # ---- before an attempt

    def _prepare(self) -> None:
        if self._restore is None or self._restore.attempt != self._job.attempt:
            self._watched = self._fetched_from = None
            self._sending.clear()
            self._known.clear()
            for link in self._links.values():
                link.withdraw()
            self._restore = Restore(
                self._job, self._writer, self._links, self._copies, self._mailbox, self._keep, self._note_host
            )
        self._restore.go_on(self._job)
