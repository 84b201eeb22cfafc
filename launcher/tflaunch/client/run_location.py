"""Where a run lives: on this machine, or in what a feature adds (a batch system).

`locate_run` tells it by the files in the run's directory. Commands ask the location that it returns, and do not know
which others there are.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tflaunch.feature import features, load
from tflaunch.store import run_dir
from tflaunch_worker import linux

if TYPE_CHECKING:
    import subprocess


def locate_run(directory: Path) -> RunLocation:
    """Return where the run in a directory, which need not exist, lives."""
    for declared in (location for feature in features().values() for location in feature.locations):
        if any(os.path.lexists(f"{directory}/{mark}") for mark in declared.marks):
            found: RunLocation | None = load(declared.finder)(directory)
            if found is not None:
                return found
    return RunLocation(directory)


class RunLocation:
    """A run on this machine, and the base of those that live elsewhere.

    Of the arguments of its methods, ``say`` shows a message, ``pause`` waits for a number of seconds (what it raises
    ends the method), and ``grace`` is the time between TERM and KILL in seconds, None for the spec's. Methods that
    reach, stop or await a run raise a TflaunchError with a sentence for the user.

    Attributes:
        directory: the run's directory on this machine.
        supervisor: what supervises the run, in a sentence.
        has_supervisor_here: whether that is on this machine, so that what is local to it is local here.
        has_files_here: whether journal and logs are in the directory.
        changed_by_looking: beginnings of the names of files there that commands write although they only read.
    """

    supervisor = "its supervisor"
    has_supervisor_here = True
    has_files_here = True
    changed_by_looking: tuple[str, ...] = ()

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def is_live(self) -> bool:
        """Return whether the run has a supervisor, or a batch job that will start one."""
        return run_dir.is_locked(self.directory)

    def begins_after_others(self) -> bool:
        """Return whether the run may begin as soon as others of this user have ended."""
        return False

    def describe_run(self) -> dict[str, Any]:
        """Return the row of `ls` for a run without records, as fields of `RunEntry`."""
        return {"state": "unreadable" if os.path.lexists(self.directory / run_dir.JOURNAL_NAME) else "not begun"}

    def describe_wait(self) -> str | None:
        """Return a sentence about a run that waits or could not begin; None once begun."""
        return None

    def describe_loss(self) -> str | None:
        """Return a sentence about a killed supervisor; None if the run may be resumed."""
        return None

    def reason_to_keep(self) -> str | None:
        """Return why the directory may still be needed, a clause after the run's name."""
        return None

    def earlier_executions(self) -> list[tuple[Path, str]]:
        """Return the directories of earlier executions, oldest first, and what followed."""
        return []

    def connect_to_supervisor(self) -> tuple[socket.socket, subprocess.Popen[bytes] | None]:
        """Connect to the supervisor, or raise OSError; return socket and relaying process."""
        return linux.connect_to(str(self.directory), run_dir.SOCKET_NAME), None

    def wait_until_begun(self, say: Callable[[str], None], pause: Callable[[float], None]) -> None:
        """Wait until the run has a journal, if it has to wait; say what it waits for."""

    def begins_again(self, say: Callable[[str], None], pause: Callable[[float], None], *, is_lost: bool) -> bool:
        """Return whether a failed run, or one without an end (``is_lost``), begins again."""
        return False

    def stop_run(self, grace: float | None, say: Callable[[str], None], stop_begun: Callable[[], int]) -> int:
        """Stop the run, by ``stop_begun`` once it has begun here; return the exit code."""
        return stop_begun()

    def stop_unsupervised(self, grace: float | None) -> None:
        """Request the end of a run whose supervisor cannot be reached; do not wait."""

    def run_verb(self, arguments: Sequence[str], say: Callable[[str], None], run_here: Callable[[], int]) -> int:
        """Run a command beside the run's files, or ``run_here``; return the exit code."""
        return run_here()

    def require_verb(self, verb: str) -> None:
        """Require that ``resume`` or ``rerun`` can supervise tasks from this machine."""
