"""Wait until a run of the local queue has begun."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tflaunch.client import queue_list, queue_wake
from tflaunch.errors import TflaunchError
from tflaunch.file_watch import ENTRIES, FileWatch
from tflaunch.interruptible import wait_readable
from tflaunch.store import run_lock, run_queue

WITHDRAWN = 143
"""The exit code of a run that was taken out of the queue: as if it had been stopped."""
_BETWEEN_LOOKS = 1.0  # seconds, for what the directory of the run does not show


def until_begun(directory: Path, say: Callable[[str], None] = lambda _: None) -> None:
    """Wait until a run that waits in the queue has a journal, and can be followed; return at once for another run.

    A dispatcher that was killed meanwhile is replaced.

    Args:
        directory: the run's directory.
        say: shows what the run waits for, whenever that changes.

    Raises:
        TflaunchError: the run could not begin, or was taken out of the queue, or no dispatcher can be started.
    """
    if not run_queue.has_order(directory):
        _require_to_be_there(directory)
        return
    watch = _watch(directory)
    told = ""
    try:
        while _waits(directory):
            queue_wake.ensure_dispatcher()
            reason = queue_list.reason_of(directory.name)
            if reason not in ("", told):
                say(f"run {directory.name} is in the queue; it waits for {reason}")
                told = reason
            if _waits(directory):
                wait_readable([] if watch is None else [watch.descriptor], _BETWEEN_LOOKS)
            if watch is not None:
                watch.take_changes()
    finally:
        if watch is not None:
            watch.close()
    _require_to_be_there(directory)


def _waits(directory: Path) -> bool:
    """Return whether a run has not begun, or is just beginning."""
    return run_queue.has_order(directory) and run_queue.read_refusal(directory) is None and not _was_killed(directory)


def _was_killed(directory: Path) -> bool:
    """Return whether a run has begun, and its supervisor was killed before it could say so."""
    return run_queue.has_begun(directory) and not run_lock.is_locked(directory)


def _require_to_be_there(directory: Path) -> None:
    refusal = run_queue.read_refusal(directory)
    if refusal is not None:
        raise TflaunchError(f"run {directory.name} could not begin: {refusal.reason}", refusal.exit_code)
    if not directory.is_dir():
        raise TflaunchError(f"run {directory.name} was taken out of the queue", WITHDRAWN)


def _watch(directory: Path) -> FileWatch | None:
    try:
        watch = FileWatch()
    except OSError:
        return None
    watch.add(directory, ENTRIES)
    return watch
