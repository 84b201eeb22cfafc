"""Runs supervised by a batch job, which may wait, and which Slurm may start again."""

from __future__ import annotations

import itertools
import math
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import tflaunch_worker
from tflaunch.client.run_location import RunLocation
from tflaunch.errors import EXIT_INTERNAL, EXIT_USAGE, TflaunchError
from tflaunch.features.slurm import jobs, waiting_jobs
from tflaunch.features.slurm.jobs import NoSlurmError, SlurmError, SlurmJob
from tflaunch.store.run_dir import SOCKET_NAME, SUPERVISOR_LOG
from tflaunch_worker.readable import duration_words

_BETWEEN_LOOKS = 1.0  # seconds; what the job writes is seen at once
_MOST_BETWEEN_QUERIES = 20  # looks: Slurm sends no notifications, and its controller serves all users
_QUERIES_PER_PLACE = 5  # all jobs of a partition may be many
_BETWEEN_TRIES = 5.0
_LAST_LINES = 5
_NODE_FAIL = "NODE_FAIL"
_NOT_STARTED = "JobLaunchFailure"
_IN_TURN = ("Priority", "Resources", "None", "")
"""Reasons of jobs that wait for their turn, and not for a time, another job or a person."""
_MUCH = 0.25  # of the time that is left
_LITTLE = 300.0  # seconds
_RELAY = (
    "import os,socket,sys;sys.path.insert(0,{root!r});from tflaunch_worker.boot import relay;"
    "os.chdir({directory!r});s=socket.socket(socket.AF_UNIX);s.connect({name!r});relay(s)"
)


class QueuePlace(NamedTuple):
    """A job's ``position`` by priority in its partition's queue of ``of``, from 1.

    ``expected``: when it starts, in seconds since the epoch; infinite if Slurm does not know that, or not yet.
    """

    position: int
    of: int
    expected: float = math.inf

    def describe(self) -> str:
        """Return it as the end of a sentence about the job."""
        where = f"{self.position} of {self.of} in the queue of its partition"
        if self.expected == math.inf:
            return where
        at = time.strftime("%Y-%m-%d %H:%M", time.localtime(self.expected))
        return f"{where}, expected to start in {duration_words(max(self.expected - time.time(), 0.0))} ({at})"

    def is_about(self, told: QueuePlace | None) -> bool:
        """Return whether ``told`` still informs enough: small changes are only noise."""
        if told is None or (self.expected == math.inf) != (told.expected == math.inf):
            return False
        has_moved = self.position <= told.position / 2 or self.position > 2 * told.position
        left = max(told.expected - time.time(), 0.0)
        is_late = self.expected != math.inf and abs(self.expected - told.expected) > max(_MUCH * left, _LITTLE)
        return not has_moved and not is_late


def is_in_turn(job: SlurmJob) -> bool:
    """Return whether a job waits for its turn only."""
    return job.is_waiting and job.reason in _IN_TURN


def find_place(number: str, job: SlurmJob | None) -> QueuePlace | None:
    """Return a job's `QueuePlace`; None if it awaits no other, or without an answer."""
    if job is None or not is_in_turn(job) or not job.partition:
        return None
    about = ["--noheader", "--states=PENDING", f"--partition={job.partition}", "--sort=-p,i", "--format=%i %S"]
    try:
        lines = [line.split() for line in jobs.run_command("squeue", *about).splitlines()]
    except SlurmError:
        return None
    waiting = {other.partition("+")[0]: expected for other, expected in lines}  # parts of a job start together
    if number not in waiting or len(waiting) == 1:
        return None
    left = jobs.seconds_until(waiting[number])
    position = list(waiting).index(number) + 1
    return QueuePlace(position, len(waiting), time.time() + left if left < math.inf else math.inf)


def find_slurm_run(directory: Path) -> RunLocation | None:
    """Return the location of a run that is a job of Slurm; None if it is none."""
    job = jobs.job_of(directory)
    return None if job is None else SlurmRun(directory, job)


class SlurmRun(RunLocation):
    """A run that is a Slurm job; its directory is on a file system that nodes share."""

    supervisor = "its job of Slurm"
    has_supervisor_here = False
    changed_by_looking = jobs.FILES

    def __init__(self, directory: Path, job: str) -> None:
        super().__init__(directory)
        self._job = job

    def is_live(self) -> bool:
        """Return whether its job waits or runs, as far as Slurm can be asked here."""
        return super().is_live() or self._unfinished_job() is not None

    def describe_run(self) -> dict[str, Any]:
        """Return the state of a run whose job has not begun it, or not again."""
        job = self._unfinished_job()
        if job is None:
            return {"state": "stopped"}
        place = find_place(self._job, job)
        if place is None:
            return {"state": "queued"}
        expected = None if place.expected == math.inf else round(place.expected, 1)
        return {"state": "queued", "position": place.position, "expected_start": expected}

    def describe_wait(self) -> str | None:
        """Return Slurm's reason for which the job waits."""
        job = self._unfinished_job()
        if job is None or jobs.has_begun(self.directory, job):
            return None
        remedy = f": {job.remedy}" if job.remedy else ""
        place = find_place(self._job, job)
        where = "" if place is None else f", {place.describe()}"
        begun = "begins again" if job.restarts else "has not begun"
        return f"run {self.directory.name} {begun}: job {self._job} is {job.standing}{where}{remedy}"

    def describe_loss(self) -> str | None:
        """Return a sentence about a job that has ended, or waits again."""
        lost = f"the supervisor of {self.directory.name} is gone, and with it job {self._job} of Slurm"
        return self.describe_wait() or f"{lost}; start its spec again"

    def reason_to_keep(self) -> str | None:
        """Return that its job may need the directory."""
        try:
            job = jobs.current_job(self.directory)
        except SlurmError as error:
            return f"may be alive, as Slurm cannot be asked about its job: {error}"
        remedy = f"to end it: tflaunch down {self.directory.name}"
        return None if job is None else f"is live: its job of Slurm is {job.state}; {remedy}"

    def earlier_executions(self) -> list[tuple[Path, str]]:
        """Return the records that the job wrote before Slurm started it again."""
        found = []
        for number, path in enumerate(jobs.earlier_lives(self.directory), 1):
            why = ", after its time limit" if (path / jobs.REACHED_NAME).exists() else ""
            found.append((path, f"Slurm started the job again (restart {number}{why})"))
        return found

    def connect_to_supervisor(self) -> tuple[socket.socket, subprocess.Popen[bytes] | None]:
        """Connect to its supervisor, here or through a step of its job on another machine."""
        try:
            return super().connect_to_supervisor()
        except OSError:
            job = self._unfinished_job()
            if job is None or not job.is_running:
                raise
            return self._connect_through_step(job.node)

    def wait_until_begun(self, say: Callable[[str], None], pause: Callable[[float], None]) -> None:
        """Wait until its job has begun the run; report its waits, and each large change."""
        name, told = self.directory.name, ""
        place: QueuePlace | None = None
        for query in itertools.count():
            seen = self._look(query, say, pause)
            if seen is None or seen.is_over:
                if seen is None or jobs.has_begun(self.directory, seen):
                    return
                raise TflaunchError(self._stillborn(seen), seen.exit_code or EXIT_INTERNAL)
            if jobs.has_begun(self.directory, seen):
                return
            standing = seen.state if is_in_turn(seen) else seen.standing
            found = find_place(self._job, seen) if query % _QUERIES_PER_PLACE == 0 else None
            if not seen.is_ending and (standing != told or (found is not None and not found.is_about(place))):
                place, told = found or place, standing
                where = f", {found.describe()}" if found is not None else ""
                remedy = (
                    f": {seen.remedy} (`tflaunch down {name}` takes the job out of the queue)" if seen.remedy else ""
                )
                say(f"job {self._job} of run {name} is {seen.standing}{where}{remedy}")
            self._await_query(query, pause)

    def begins_again(self, say: Callable[[str], None], pause: Callable[[float], None], *, is_lost: bool) -> bool:
        """Return whether Slurm starts its job again, as after the failure of a node."""
        end = self._wait_until_settled(say, pause)
        if end is not None and not end.is_over:
            return True
        if is_lost:
            failed = jobs.failed_nodes(end) if end is not None and end.state == _NODE_FAIL else ""
            nodes = f" of {failed}" if failed else ""
            state = "" if end is None else f" ({end.state}{nodes})"
            raise TflaunchError(f"Slurm has ended job {self._job}{state}; start the spec again", EXIT_INTERNAL)
        return False

    def stop_run(self, grace: float | None, say: Callable[[str], None], stop_begun: Callable[[], int]) -> int:
        """Cancel a job that waits; otherwise its supervisor can be reached."""
        if not self.describe_wait():
            return stop_begun()
        self.stop_unsupervised(grace)
        say(f"run {self.directory.name} was cancelled before it began")
        return 0

    def stop_unsupervised(self, grace: float | None) -> None:
        """Cancel its job, if that has not ended."""
        try:
            if jobs.current_job(self.directory) is not None:
                jobs.run_command("scancel", self._job)
        except SlurmError as error:
            raise TflaunchError(f"job {self._job} cannot be cancelled: {error}", EXIT_INTERNAL) from None

    def require_verb(self, verb: str) -> None:
        """Refuse both: Slurm has given the nodes to the job."""
        name = self.directory.name
        if verb == "resume":
            message = f"the job of run {name} is over; Slurm puts a job back into its queue itself"
        else:
            remedy = f"tflaunch up --on slurm {self.directory}/spec.json"
            message = f"{name} was a batch job of Slurm; submit its spec again: {remedy}"
        raise TflaunchError(message, EXIT_USAGE)

    def _unfinished_job(self) -> SlurmJob | None:
        """Return its job's state; None if the job has ended or Slurm cannot be asked here."""
        try:
            return jobs.current_job(self.directory)
        except SlurmError:
            return None

    def _connect_through_step(self, node: str) -> tuple[socket.socket, subprocess.Popen[bytes]]:
        """Connect to the supervisor on a node; a program there relays its socket."""
        root = str(Path(tflaunch_worker.__file__).parent.parent)
        program = _RELAY.format(root=root, directory=str(self.directory), name=SOCKET_NAME)
        words = [*jobs.step_command(self._job, node), sys.executable, "-I", "-S", "-c", program]
        ours, theirs = socket.socketpair()
        try:
            carrier = subprocess.Popen(
                words, stdin=theirs.fileno(), stdout=theirs.fileno(), stderr=subprocess.DEVNULL, start_new_session=True
            )
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        return ours, carrier

    def _wait_until_settled(self, say: Callable[[str], None], pause: Callable[[float], None]) -> SlurmJob | None:
        """Wait until a job whose supervisor is gone has ended, or is queued again."""
        query = 0
        while True:
            seen = self._look(query, say, pause)
            if seen is None or seen.is_over or seen.is_waiting or not jobs.has_begun(self.directory, seen):
                return seen
            self._await_query(query, pause)
            query += 1

    def _await_query(self, query: int, pause: Callable[[float], None]) -> None:
        """Pause until Slurm is asked again: ever later, but at once if the job has begun."""
        begun = jobs.life_of(self.directory)
        for _ in range(min(1 + query, _MOST_BETWEEN_QUERIES)):
            pause(_BETWEEN_LOOKS)
            if jobs.life_of(self.directory) != begun:
                return

    def _look(self, query: int, say: Callable[[str], None], pause: Callable[[float], None]) -> SlurmJob | None:
        """Return the job's state, None if Slurm has no such job; report and retry errors.

        The first ``query`` asks Slurm, and later ones take an answer that is as old as the pause before them.
        """
        is_told = False
        while True:
            try:
                return waiting_jobs.find_job(self._job, _BETWEEN_LOOKS * min(query, _MOST_BETWEEN_QUERIES))
            except NoSlurmError as error:
                raise TflaunchError(f"job {self._job} cannot be asked for: {error}", EXIT_INTERNAL) from None
            except SlurmError as error:
                if not is_told:
                    say(f"Slurm does not report the state of job {self._job}: {error}; still trying")
                is_told = True
                pause(_BETWEEN_TRIES)

    def _stillborn(self, seen: SlurmJob) -> str:
        """Return a message on a job that ended before its run began, and its last output."""
        if seen.reason == _NOT_STARTED:
            return (
                f"Slurm could not start job {self._job} on {seen.node}, which probably does not see {self.directory}: "
                "let TFLAUNCH_HOME be a directory that all nodes share"
            )
        try:
            lines = (self.directory / SUPERVISOR_LOG).read_text("utf-8", "replace").splitlines()[-_LAST_LINES:]
        except OSError:
            lines = []
        return "\n".join(
            [f"job {self._job} of run {self.directory.name} was {seen.state} before the run began", *lines]
        )
