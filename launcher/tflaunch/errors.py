"""Errors before a job runs, and the exit codes that users can rely on."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tflaunch_worker import boot
from tflaunch_worker.readable import printable

EXIT_USAGE = 2
EXIT_PREFLIGHT = 3
EXIT_TIMEOUT = 124
EXIT_INTERNAL = 125
EXIT_INTERRUPTED = 130

_LONGEST_SENTENCE = 10_000


TRAINS_ALONE = "trains_alone"


class Problem(NamedTuple):
    """A problem in a spec, with its place and a remedy.

    ``severity`` is ``error`` or ``warning``; ``where`` is a place such as ``cluster.worker[1]``; ``kind`` is
    `TRAINS_ALONE` for the reason why the tasks would not train together.
    """

    severity: str
    where: str
    message: str
    hint: str
    kind: str = ""

    @classmethod
    def error(cls, where: str, message: str, hint: str) -> Problem:
        """Return a problem that keeps the job from running."""
        return cls("error", where, message, hint)

    @classmethod
    def warning(cls, where: str, message: str, hint: str) -> Problem:
        """Return a problem with which the job runs, but probably not as intended."""
        return cls("warning", where, message, hint)

    def sentence(self) -> str:
        """Return the problem as one line of text."""
        place = f"{self.where}: " if self.where else ""
        remedy = f"; {self.hint}" if self.hint else ""
        return printable(f"{place}{self.message}{remedy}", _LONGEST_SENTENCE)


def missing_feature(where: str) -> Problem:
    """Return the problem of something that only a feature does which is not installed."""
    message = "needs a part of tflaunch that is missing from this installation"
    return Problem.error(where, message, "remove it, or install all of tflaunch")


def describe_os_error(error: OSError, place: object = "") -> str:
    """Return a sentence about an `OSError`: its file, or else ``place``, and a remedy."""
    if sentence := out_of_resources(error):
        return sentence
    is_in_the_way = isinstance(error, (FileExistsError, IsADirectoryError, NotADirectoryError))  # of a renamed file
    where = str((is_in_the_way and error.filename2) or error.filename or place)
    if isinstance(error, FileNotFoundError) and not os.path.isabs(where):
        try:
            os.getcwd()
        except FileNotFoundError:
            return "the current directory does not exist any more; change to another one"
    remedy = ""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):  # a write does not name its file
        home = boot.own_directory(is_given=True)
        where = where or (home if _is_full(home) else "")
        is_ours = where == home or where.startswith(f"{home}/")
        remedy = "; free some space there, or set TFLAUNCH_HOME to a directory on another disk" if is_ours else ""
    return f"{where and f'{where}: '}{error.strerror or error}{remedy}"


def _is_full(path: str) -> bool:
    """Whether the disk of a path, which need not exist, is full."""
    while not os.path.exists(path):
        path = os.path.dirname(path)
    disk = os.statvfs(path)
    return not disk.f_bavail or (disk.f_files > 0 and not disk.f_favail)  # some count no files


def out_of_resources(error: BaseException) -> str:
    """Return a sentence about a lack of processes, threads or memory, else ""."""
    signs = ("can't start new thread", "failed to map segment", os.strerror(errno.ENOMEM))
    # Without memory, CPython may lose the exception, and raises a SystemError that says so or nothing.
    is_lost = isinstance(error, SystemError) and (not str(error) or "without" in str(error))
    is_memory = isinstance(error, MemoryError) or is_lost
    if not (is_memory or any(sign in str(error) for sign in signs) or _is_of_fork(error)):
        return ""
    limits = [resource.getrlimit(each)[0] for each in (resource.RLIMIT_NPROC, resource.RLIMIT_AS)]
    processes, memory = ("unlimited" if limit == resource.RLIM_INFINITY else limit for limit in limits)
    raised = f"raise `ulimit -u` ({processes}), `ulimit -v` ({memory} bytes), or pids.max and memory.max of its cgroup"
    return f"tflaunch has no room here for another thread or process, or for memory; {raised}, or end other programs"


def _is_of_fork(error: BaseException) -> bool:
    """Return whether a fork was refused; EAGAIN alone may be a file that is not ready."""
    place = error.__traceback__ if isinstance(error, BlockingIOError) else None
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    return place is not None and any("fork" in name for name in place.tb_frame.f_code.co_names)


class TflaunchError(Exception):
    """An error that ends the command with one sentence and an exit code."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class SupervisedElsewhereError(TflaunchError):
    """Error for a run that lives in a cluster; ``directory`` is its local directory."""

    def __init__(self, directory: Path) -> None:
        message = (
            f"run {directory.name} is supervised in its cluster, and this command does not reach it there: ps, logs,"
            " attach, events, explain, stacks, restart, kill, wait and down do; after its end all do"
            f" (tflaunch wait {directory.name})"
        )
        super().__init__(message, EXIT_USAGE)
        self.directory = directory


class SpecError(Exception):
    """An unusable spec: all its problems, at least one of them an error."""

    def __init__(self, source: str, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(f"{source}: {problem.sentence()}" for problem in problems))
        self.source = source
        self.problems = tuple(problems)
