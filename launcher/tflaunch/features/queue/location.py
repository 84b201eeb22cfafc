"""Runs that wait in the local queue, are just beginning, or could not begin."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from tflaunch.client.control_client import ControlClient
from tflaunch.client.run_location import RunLocation
from tflaunch.client.runs import NoSupervisorError
from tflaunch.errors import EXIT_INTERNAL, TflaunchError
from tflaunch.features import file_tree
from tflaunch.features.queue import queue_list, tickets
from tflaunch.store import run_lock

_IN_QUEUE = ("queued", "beginning")
_STOPPED = 143  # the exit code of a run that was taken out of the queue: as if it had been stopped
_BETWEEN_REASONS = 1.0  # seconds, between two looks at what it waits for
_BETWEEN_TRIES = 0.05  # seconds, between two looks at whether it has begun


class QueuedRun(RunLocation):
    """A run that has not left the queue, or was refused.

    It may begin at any moment, and lives here from then on.
    """

    def begins_after_others(self) -> bool:
        """Return whether it has not left the queue."""
        return self._state() in _IN_QUEUE

    def describe_run(self) -> dict[str, Any]:
        """Return its state in `ls`, and its values of `--matrix`."""
        state, refusal = self._state(), tickets.read_refusal(self.directory)
        if refusal is not None:
            return {"state": "stopped" if refusal.exit_code > 128 else "failed", "exit_code": refusal.exit_code}
        if state not in _IN_QUEUE and state != "lost":
            return super().describe_run()
        entry = tickets.read_entry(self.directory)
        return {"state": "lost" if state == "lost" else "queued", "matrix": entry.values if entry else {}}

    def describe_wait(self) -> str | None:
        """Return that it is in the queue, or why it could not begin."""
        name, state, refusal = self.directory.name, self._state(), tickets.read_refusal(self.directory)
        if refusal is not None:
            return f"run {name} could not begin: {refusal.reason}"
        if state == "lost":
            return f"run {name} was killed while it waited, or by a reboot; start its spec again"
        waits = state == "queued" or (state == "beginning" and not tickets.has_begun(self.directory))
        return f"run {name} has not begun; `tflaunch queue` says what it waits for" if waits else None

    def reason_to_keep(self) -> str | None:
        """Return that it waits."""
        waits = self.begins_after_others()
        return f"waits in the queue; to take it out: tflaunch down {self.directory.name}" if waits else None

    def wait_until_begun(self, say: Callable[[str], None], pause: Callable[[float], None]) -> None:
        """Wait until it has left the queue."""
        name, said, due = self.directory.name, "", 0.0
        while (state := self._state()) in _IN_QUEUE:
            if time.monotonic() >= due:
                due = time.monotonic() + _BETWEEN_REASONS
                reason = queue_list.reason_of(name)
                if reason not in ("", said):
                    say(f"run {name} is in the queue; it waits for {reason}")
                    said = reason
            pause(_BETWEEN_TRIES)
        if state == "withdrawn":
            raise TflaunchError(f"run {name} was taken out of the queue", _STOPPED)
        if state != "begun":
            refusal = tickets.read_refusal(self.directory)
            raise TflaunchError(str(self.describe_wait()), EXIT_INTERNAL if refusal is None else refusal.exit_code)

    def stop_run(self, grace: float | None, say: Callable[[str], None], stop_begun: Callable[[], int]) -> int:
        """Take it out of the queue; if it begins just now, wait until it can be stopped."""
        if self._withdraw():
            say(f"took {self.directory.name} out of the queue")
            return 0
        try:
            self.wait_until_begun(lambda _: None, time.sleep)
        except TflaunchError as error:
            say(str(error))
            return 0
        return stop_begun()

    def stop_unsupervised(self, grace: float | None) -> None:
        """Take it out of the queue; if it begins just now, stop its supervisor."""
        while not self._withdraw():
            try:
                ControlClient(self.directory).ask("stop", grace=grace)
                return
            except NoSupervisorError:
                if self._state() != "beginning":
                    return
                time.sleep(_BETWEEN_TRIES)

    def _withdraw(self) -> bool:
        """Take it out of the queue and delete it; return False if it does not wait."""
        try:
            is_ours = tickets.claim(self.directory, tickets.WITHDRAWN)
            if is_ours:
                file_tree.delete_run(self.directory)
        except OSError as error:
            raise TflaunchError(f"{error.filename}: {error.strerror}", EXIT_INTERNAL) from None
        return is_ours

    def _state(self) -> str:
        """Return the state: queued, beginning, begun, refused, withdrawn or lost.

        Its process takes the lock of the run before that of the ticket is free, and changes files before it frees a
        lock. So the locks are looked at in this order, and before the files.
        """
        path = self.directory
        is_queued = tickets.waits(path)
        is_locked = run_lock.is_locked(path)
        if tickets.read_refusal(path) is not None:
            return "refused"
        if is_queued:
            return "queued"
        if is_locked and os.path.lexists(path / tickets.BEGINS):
            return "beginning"
        if tickets.has_begun(path):
            return "begun"
        is_lost = any(os.path.lexists(path / name) for name in (tickets.QUEUED, tickets.BEGINS))
        return "lost" if is_lost else "withdrawn"
