"""Runs in the local queue: how they are shown, wait, and leave it."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from tflaunch.client.control_client import ControlClient
from tflaunch.client.run_list import aligned
from tflaunch.client.run_location import RunLocation
from tflaunch.client.runs import NoSupervisorError
from tflaunch.clusterspec.values import LOCALHOST
from tflaunch.errors import EXIT_INTERNAL, TflaunchError
from tflaunch.explain import wording
from tflaunch.features import file_tree
from tflaunch.features.queue import tickets
from tflaunch.features.queue.machine_use import MachineUse
from tflaunch.features.queue.queue_order import Obstacle
from tflaunch.store import run_dir
from tflaunch_worker.readable import age_words

_IN_QUEUE = ("queued", "beginning")
_STOPPED = 143  # the exit code of a run that was taken out of the queue: as if it had been stopped
_BETWEEN_REASONS = 1.0  # seconds, between two looks at what it waits for
_BETWEEN_TRIES = 0.05  # seconds, between two looks at whether it has begun
_COLUMNS = ("RUN", "QUEUED", "NEEDS", "WAITS FOR")
_SHOWN = 3  # runs in a sentence


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

    def wait_until_begun(self, say: Callable[[str], None], pause: Callable[[float], None]) -> None:
        """Wait until it has left the queue."""
        name, said, due, use = self.directory.name, "", 0.0, MachineUse()
        while (state := self._state()) in _IN_QUEUE:
            if time.monotonic() >= due:
                due = time.monotonic() + _BETWEEN_REASONS
                reason = _reason_of(name, use)
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
        if self._withdraw():
            return
        with suppress(TflaunchError):  # it could not begin
            self.wait_until_begun(lambda _: None, time.sleep)
        with suppress(NoSupervisorError):
            ControlClient(self.directory).ask("stop", grace=grace)

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
        is_locked = run_dir.is_locked(path)
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


class QueueEntry(NamedTuple):
    """A run that waits.

    `queued` is when, in seconds since 1970; `needs` has the number of GPUs by machine, null for all of it. ``values``
    are those of `--matrix`; ``reason`` is a sentence.
    """

    run: str
    queued: float
    needs: Mapping[str, int | None]
    values: Mapping[str, str]
    obstacles: tuple[Obstacle, ...]
    reason: str


Waiting = list[QueueEntry]


def overview() -> Waiting:
    """Return the runs that wait, the next one first; raises as `tickets.read_waiting`."""
    return [_listed(entry, verdict.obstacles) for entry, verdict in MachineUse().verdicts()]


def _reason_of(run: str, use: MachineUse) -> str:
    """Return the obstacles of a run in words, "" if it has none, or does not wait."""
    listed = (_listed(entry, verdict.obstacles) for entry, verdict in use.verdicts() if entry.run == run)
    return next((entry.reason for entry in listed if entry.obstacles), "")


def _listed(entry: tickets.Entry, obstacles: tuple[Obstacle, ...]) -> QueueEntry:
    needs = {machine: share.gpus for machine, share in entry.needs.items()}
    reason = "; ".join(_reason(obstacle, needs[obstacle.machine]) for obstacle in obstacles) or "begins now"
    return QueueEntry(entry.run, entry.queued, needs, dict(entry.values), obstacles, reason)


def _reason(obstacle: Obstacle, gpus: int | None) -> str:
    if obstacle.is_ahead:
        return f"{obstacle.runs[0]}, which is ahead and needs {_shown(obstacle.machine)}, too"
    names = ", ".join(sorted(obstacle.runs)[:_SHOWN])
    more = f" and {len(obstacle.runs) - _SHOWN} more" if len(obstacle.runs) > _SHOWN else ""
    taken = _shown(obstacle.machine, gpus)
    return f"{names}{more} on {taken}" if len(obstacle.runs) == 1 else f"{names}{more}, which have {taken}"


def table(entries: Sequence[QueueEntry], now: float) -> str:
    """Return the entries as aligned text; ``now`` is in seconds since 1970."""
    rows = [_COLUMNS]
    for entry in entries:
        needs = ", ".join(_shown(machine, gpus) for machine, gpus in entry.needs.items())
        rows.append((entry.run, age_words(now - entry.queued), needs, entry.reason))
    return aligned(rows)


def _shown(machine: str, gpus: int | None = None) -> str:
    """Return the words for a machine, or for some of its GPUs."""
    name = "this machine" if machine == LOCALHOST else machine
    return f"{wording.counted(gpus, 'GPU')} of {name}" if gpus else name
