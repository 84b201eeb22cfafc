"""Show the local queue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tflaunch.client.run_list import aligned
from tflaunch.clusterspec.values import LOCALHOST
from tflaunch.explain import wording
from tflaunch.features.queue import tickets
from tflaunch.features.queue.machine_use import MachineUse
from tflaunch.features.queue.queue_order import Obstacle, decide
from tflaunch.features.queue.tickets import Entry
from tflaunch_worker.readable import age_words

_COLUMNS = ("RUN", "QUEUED", "NEEDS", "WAITS FOR")
_SHOWN = 3  # runs in a sentence


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
    entries = tickets.read_waiting()
    holders = MachineUse().holders({entry.run for entry in entries})
    verdicts = decide({entry.run: entry.needs for entry in entries}, holders, tickets.read_slots())
    return [_listed(entry, verdict.obstacles) for entry, verdict in zip(entries, verdicts, strict=True)]


def reason_of(run: str) -> str:
    """Return the obstacles of a run in words, "" if it has none, or does not wait."""
    return next((entry.reason for entry in overview() if entry.run == run and entry.obstacles), "")


def _listed(entry: Entry, obstacles: tuple[Obstacle, ...]) -> QueueEntry:
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
