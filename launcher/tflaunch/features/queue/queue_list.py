"""Show the local queue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tflaunch.clusterspec.values import LOCALHOST
from tflaunch.explain import wording
from tflaunch.features.queue import run_queue
from tflaunch.features.queue.machine_use import MachineUse
from tflaunch.features.queue.queue_order import Candidate, Obstacle, Verdict, decide
from tflaunch.features.queue.run_queue import Entry
from tflaunch.store import run_lock
from tflaunch.store.run_dir import runs_directory
from tflaunch_worker.readable import age_words

_COLUMNS = ("RUN", "QUEUED", "NEEDS", "WAITS FOR")
_SHOWN = 3  # runs in a sentence


class QueueEntry(NamedTuple):
    """A run that waits, since `queued` (seconds since 1970); `needs`: machine to number of GPUs, null for all of it.

    ``values`` are those of `--matrix`; ``reason`` is a sentence.
    """

    run: str
    queued: float
    needs: Mapping[str, int | None]
    values: Mapping[str, str]
    obstacles: tuple[Obstacle, ...]
    reason: str


Waiting = list[QueueEntry]


def overview() -> Waiting:
    """Return the entries of the queue, the oldest first.

    Raises:
        TflaunchError: another user could have put entries there.
    """
    entries = [entry for entry in run_queue.read_entries()[0].values() if not _begins(entry)]
    names = {entry.run for entry in entries}
    candidates = [Candidate(entry.run, entry.needs) for entry in entries]
    verdicts = decide(candidates, MachineUse().holders(names), run_queue.read_slots())
    return [_about(entry, verdict) for entry, verdict in zip(entries, verdicts, strict=True)]


def reason_of(run: str) -> str:
    """Return what a run waits for, "" if it does not wait, or begins just now."""
    return next((entry.reason for entry in overview() if entry.run == run and entry.obstacles), "")


def _begins(entry: Entry) -> bool:
    """Return whether an entry is about to be removed, because its run begins."""
    path = runs_directory() / entry.run
    return run_queue.has_begun(path) or run_lock.is_locked(path)


def _about(entry: Entry, verdict: Verdict) -> QueueEntry:
    needs = {machine: share.gpus for machine, share in entry.needs.items()}
    reason = _reason(entry, verdict.obstacles)
    return QueueEntry(entry.run, entry.queued, needs, dict(entry.values), verdict.obstacles, reason)


def _reason(entry: Entry, obstacles: Sequence[Obstacle]) -> str:
    """Return what an entry waits for."""
    return "; ".join(_sentence(entry, obstacle) for obstacle in obstacles) or "begins now"


def _sentence(entry: Entry, obstacle: Obstacle) -> str:
    machine = _shown_machine(obstacle.machine)
    if obstacle.is_ahead:
        return f"{obstacle.runs[0]}, which is ahead and needs {machine}, too"
    names = ", ".join(sorted(obstacle.runs)[:_SHOWN])
    more = f" and {len(obstacle.runs) - _SHOWN} more" if len(obstacle.runs) > _SHOWN else ""
    gpus = entry.needs[obstacle.machine].gpus
    what = f"{wording.counted(gpus, 'GPU')} of {machine}" if gpus else machine
    return f"{names}{more} on {what}" if len(obstacle.runs) == 1 else f"{names}{more}, which have {what}"


def table(entries: Sequence[QueueEntry], now: float) -> str:
    """Return the entries as aligned text; ``now`` is in seconds since 1970."""
    from tflaunch.client.run_list import aligned

    rows = [(entry.run, age_words(now - entry.queued), _shown_needs(entry.needs), entry.reason) for entry in entries]
    return aligned([_COLUMNS, *rows])


def _shown_needs(needs: Mapping[str, int | None]) -> str:
    words = (
        f"{wording.counted(gpus, 'GPU')} of {_shown_machine(machine)}" if gpus else _shown_machine(machine)
        for machine, gpus in needs.items()
    )
    return ", ".join(words)


def _shown_machine(machine: str) -> str:
    return "this machine" if machine == LOCALHOST else machine
