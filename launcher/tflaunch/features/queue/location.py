"""Runs that wait in the local queue, are just beginning, or could not begin."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from tflaunch.client import file_tree
from tflaunch.client.control_client import ControlClient
from tflaunch.client.run_location import RunLocation
from tflaunch.client.runs import NoSupervisorError
from tflaunch.errors import EXIT_INTERNAL, TflaunchError
from tflaunch.features.queue import queue_list, queue_wake, run_queue
from tflaunch.store import run_lock

_WITHDRAWN = 143  # the exit code of a run that was taken out of the queue: as if it had been stopped
_LOST = "cannot begin, because its entry in the queue is lost; remove it with `tflaunch down`, and start its spec again"
_MOST_STARTS = 3  # of a dispatcher, one after the other
_BETWEEN_LOOKS = 1.0  # seconds, at what it waits for
_BETWEEN_TRIES = 0.02  # seconds, at whether it has begun


class QueuedRun(RunLocation):
    """A run that has not left the queue, or was refused. It may begin at any moment, and lives here from then on."""

    def begins_after_others(self) -> bool:
        """Return whether it has not left the queue."""
        return run_queue.has_order(self.directory)

    def describe_run(self) -> dict[str, Any]:
        """Return what `ls` shows before it has begun."""
        refusal = run_queue.read_refusal(self.directory)
        if refusal is not None:
            return {"state": "failed", "exit_code": refusal.exit_code}
        entry = run_queue.find_entry(self.directory.name) if run_queue.has_order(self.directory) else None
        return super().describe_run() if entry is None else {"state": "queued", "matrix": dict(entry.values)}

    def describe_wait(self) -> str | None:
        """Return that it is in the queue, or why it could not begin."""
        name, refusal = self.directory.name, run_queue.read_refusal(self.directory)
        if refusal is not None:
            return f"run {name} could not begin: {refusal.reason}"
        is_queued = run_queue.has_order(self.directory) and not run_queue.has_begun(self.directory)
        waits = is_queued and run_queue.find_entry(name) is not None
        return f"run {name} has not begun; `tflaunch queue` says what it waits for" if waits else None

    def wait_until_begun(self, say: Callable[[str], None], pause: Callable[[float], None]) -> None:
        """Wait until it has left the queue; a dispatcher that was killed meanwhile is replaced."""
        if not run_queue.has_order(self.directory):
            self._require_to_be_there()
            return
        told, due, was_lost, starts = "", 0.0, False, 0
        while self._waits():
            if time.monotonic() >= due:
                due = time.monotonic() + _BETWEEN_LOOKS
                is_lost = self._is_lost()
                if is_lost and was_lost:  # twice, as a run has its order just before its entry
                    raise TflaunchError(f"run {self.directory.name} {_LOST}", EXIT_INTERNAL)
                was_lost = is_lost
                starts = starts + 1 if queue_wake.ensure_dispatcher() else 0
                if starts > _MOST_STARTS:
                    raise TflaunchError(queue_wake.describe_failure(), EXIT_INTERNAL)
                reason = queue_list.reason_of(self.directory.name)
                if reason not in ("", told):
                    say(f"run {self.directory.name} is in the queue; it waits for {reason}")
                    told = reason
            pause(_BETWEEN_TRIES)
        self._require_to_be_there()

    def stop_run(self, grace: float | None, say: Callable[[str], None], stop_begun: Callable[[], int]) -> int:
        """Take it out of the queue; if it begins just now, wait until it can be stopped."""
        if run_queue.has_order(self.directory):
            if self._withdraw():
                say(f"took {self.directory.name} out of the queue")
                return 0
            try:
                self.wait_until_begun(lambda _: None, time.sleep)
            except TflaunchError as error:
                say(str(error))
                return 0
        elif run_queue.read_refusal(self.directory) is not None:
            say(str(self.describe_wait()))
            return 0
        return stop_begun()

    def stop_unsupervised(self, grace: float | None) -> None:
        """Take it out of the queue; if it begins just now, it is stopped as soon as it has a supervisor."""
        while not self._withdraw():
            try:
                ControlClient(self.directory).ask("stop", grace=grace)
                return
            except NoSupervisorError:
                if not run_queue.has_order(self.directory):
                    return
                time.sleep(_BETWEEN_TRIES)

    def _withdraw(self) -> bool:
        """Take it out of the queue, and delete its directory; return False if it does not wait, or begins just now."""
        path = self.directory
        if not run_queue.has_order(path) or run_queue.has_begun(path):
            return False
        try:
            lock = run_lock.take_lock(path)
        except TflaunchError:
            return False
        try:
            if run_queue.has_begun(path):
                return False
            run_queue.remove_entry(path.name)
            file_tree.delete_run(path)
        except OSError as error:
            raise TflaunchError(f"{error.filename}: {error.strerror}", EXIT_INTERNAL) from None
        finally:
            os.close(lock)
        return True

    def _waits(self) -> bool:
        """Return whether it has not begun, or is just beginning."""
        is_refused = run_queue.read_refusal(self.directory) is not None
        return run_queue.has_order(self.directory) and not is_refused and not self._was_killed()

    def _is_lost(self) -> bool:
        """Return whether the queue has no entry of a run that has not begun."""
        is_known = run_queue.is_listed(self.directory.name) or run_lock.is_locked(self.directory)
        return not is_known and not run_queue.has_begun(self.directory)

    def _was_killed(self) -> bool:
        """Return whether it has begun, and its supervisor was killed before it could say so."""
        return run_queue.has_begun(self.directory) and not run_lock.is_locked(self.directory)

    def _require_to_be_there(self) -> None:
        if (refusal := run_queue.read_refusal(self.directory)) is not None:
            raise TflaunchError(str(self.describe_wait()), refusal.exit_code)
        if not self.directory.is_dir():
            raise TflaunchError(f"run {self.directory.name} was taken out of the queue", _WITHDRAWN)
