"""Where a job is in Slurm's queue, and when Slurm expects to start it."""

from __future__ import annotations

import math
import time
from typing import NamedTuple

from tflaunch.features.slurm import commands
from tflaunch.features.slurm.commands import SlurmError, SlurmJob
from tflaunch_worker.readable import duration_words

_IN_TURN = ("Priority", "Resources", "None", "")
"""Reasons of jobs that wait for their turn, and not for a time, another job or a person."""
_MUCH = 0.25  # of the time that is left
_LITTLE = 300.0  # seconds


class QueuePlace(NamedTuple):
    """The job's ``position`` by priority among all ``of`` that wait for its partition, the first being 1.

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
        """Return whether one who was told that place knows enough: news of each second would only be noise."""
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
    """Return where a job is in the queue; None if it does not wait for others, or Slurm does not tell."""
    if job is None or not is_in_turn(job) or not job.partition:
        return None
    about = ["--noheader", "--states=PENDING", f"--partition={job.partition}", "--sort=-p,i", "--format=%i %S"]
    try:
        lines = [line.split() for line in commands.run_command("squeue", *about).splitlines()]
    except SlurmError:
        return None
    waiting = {other.partition("+")[0]: expected for other, expected in lines}  # parts of a job start together
    if number not in waiting or len(waiting) == 1:
        return None
    left = commands.seconds_until(waiting[number])
    position = list(waiting).index(number) + 1
    return QueuePlace(position, len(waiting), time.time() + left if left < math.inf else math.inf)
