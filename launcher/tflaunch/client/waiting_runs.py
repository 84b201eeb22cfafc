"""Follow a run that may have to wait: in the local queue, or in that of Slurm, which may start it again."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from tflaunch.client import queue_follow
from tflaunch.client.observer import Observer
from tflaunch.errors import EXIT_INTERNAL, TflaunchError
from tflaunch.slurm import batch, commands
from tflaunch.slurm.commands import NoSlurmHere, SlurmError, SlurmJob
from tflaunch.store.run_dir import SUPERVISOR_LOG

_BETWEEN_LOOKS = 1.0  # seconds: Slurm sends no notifications, so it is polled
_BETWEEN_TRIES = 5.0
_LAST_LINES = 5


def follow(
    directory: Path,
    say: Callable[[str], None],
    watch: Callable[[Observer], int],
    pause: Callable[[float], None] = time.sleep,
) -> int:
    """Follow a run until it has ended for good, and return its exit code.

    Args:
        directory: the run's directory.
        say: shows a message.
        watch: follows the run until its supervisor ends, and returns the exit code.
        pause: waits for a number of seconds; what it raises ends the function.

    Raises:
        TflaunchError: the run's supervisor was killed, or Slurm has ended its job, or it has not begun and does not
            wait any more.
    """
    job = batch.job_of(directory)
    if job is None:
        queue_follow.until_begun(directory, say)
        return watch(Observer(directory))
    while True:
        _until_begun(directory, job, say, pause)
        lost = None
        try:
            code = watch(Observer(directory))
        except TflaunchError as error:
            code, lost = error.exit_code, error
        if code == 0:
            return code
        end = _until_settled(directory, job, say, pause)
        if end is not None and not end.is_over:
            continue  # Slurm will start it again
        if lost is not None:
            state = "" if end is None else f" ({end.state})"
            raise TflaunchError(f"Slurm has ended job {job}{state}; start the spec again", EXIT_INTERNAL) from None
        return code


def until_begun(directory: Path, say: Callable[[str], None]) -> None:
    """Wait until a run has a readable journal; arguments are those of `follow`.

    Raises:
        TflaunchError: the run's job ended before that, or it was taken out of the queue.
    """
    job = batch.job_of(directory)
    if job is None:
        queue_follow.until_begun(directory, say)
    else:
        _until_begun(directory, job, say, time.sleep)


def _until_begun(directory: Path, job: str, say: Callable[[str], None], pause: Callable[[float], None]) -> None:
    told = ""
    while True:
        seen = _look(job, say, pause)
        if seen is None or seen.is_over:
            if seen is None or batch.has_begun(directory, seen):
                return
            raise TflaunchError(_stillborn(directory, job, seen), seen.exit_code or EXIT_INTERNAL)
        if batch.has_begun(directory, seen):
            return
        news = f"job {job} of run {directory.name} is {seen.state}" + (f" ({seen.reason})" if seen.is_waiting else "")
        if seen.remedy:
            news += f": {seen.remedy} (`tflaunch down {directory.name}` takes the job out of the queue)"
        if news != told:
            say(news)
        told = news
        pause(_BETWEEN_LOOKS)


def _until_settled(
    directory: Path, job: str, say: Callable[[str], None], pause: Callable[[float], None]
) -> SlurmJob | None:
    """Wait until a job whose supervisor is gone has ended, or is queued again."""
    while True:
        seen = _look(job, say, pause)
        if seen is None or seen.is_over or seen.is_waiting or not batch.has_begun(directory, seen):
            return seen
        pause(_BETWEEN_LOOKS)


def _look(job: str, say: Callable[[str], None], pause: Callable[[float], None]) -> SlurmJob | None:
    """Return a job's state, None if unknown to Slurm; report once if Slurm does not answer, and retry."""
    is_told = False
    while True:
        try:
            return commands.find_job(job)
        except NoSlurmHere as error:
            raise TflaunchError(f"job {job} cannot be asked for: {error}", EXIT_INTERNAL) from None
        except SlurmError as error:
            if not is_told:
                say(f"Slurm does not report the state of job {job}: {error}; still trying")
            is_told = True
            pause(_BETWEEN_TRIES)


def _stillborn(directory: Path, job: str, seen: SlurmJob) -> str:
    """Return a message about a job that ended before its run began, with the supervisor's last messages."""
    try:
        lines = (directory / SUPERVISOR_LOG).read_text("utf-8", "replace").splitlines()[-_LAST_LINES:]
    except OSError:
        lines = []
    return "\n".join([f"job {job} of run {directory.name} was {seen.state} before the run began", *lines])
