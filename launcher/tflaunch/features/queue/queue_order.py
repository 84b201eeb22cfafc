"""Which entries of the queue can begin, and what the others wait for. Pure.

The oldest entry begins first. A later one overtakes it only if they share no machine, so that entries that need little
cannot keep one that needs much waiting.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from tflaunch.features.queue.host_shares import Share


class Candidate(NamedTuple):
    """An entry of the queue, and what it needs of each machine."""

    run: str
    needs: Mapping[str, Share]


class Holder(NamedTuple):
    """A run, and what it holds of each machine; None if that is not known yet."""

    run: str
    holds: Mapping[str, Share] | None


class Obstacle(NamedTuple):
    """Runs that hold a machine; with `is_ahead`, they wait for it as well, and were queued before."""

    machine: str
    runs: tuple[str, ...]
    is_ahead: bool


class Verdict(NamedTuple):
    """What happens to an entry: it begins with these GPUs of each machine, or there are obstacles."""

    run: str
    devices: Mapping[str, tuple[str, ...]]
    obstacles: tuple[Obstacle, ...]

    @property
    def begins(self) -> bool:
        """Whether the entry begins now."""
        return not self.obstacles


def decide(candidates: Iterable[Candidate], holders: Iterable[Holder], slots: int) -> Iterator[Verdict]:
    """Yield what happens to each entry, one by one: it can begin before the others are considered.

    Args:
        candidates: the entries, the oldest first.
        holders: the runs that are live.
        slots: how many runs may be on a machine at once, apart from those that have GPUs of their own there.
    """
    holders = list(holders)
    unknown = tuple(holder.run for holder in holders if holder.holds is None)
    on_machine: dict[str, list[tuple[str, Share]]] = {}
    for holder in holders:
        _occupy(on_machine, holder.run, holder.holds or {})
    last_waiting: dict[str, str] = {}
    for candidate in candidates:
        obstacles = [
            Obstacle(machine, (last_waiting[machine],), True) for machine in candidate.needs if machine in last_waiting
        ]
        devices: dict[str, tuple[str, ...]] = {}
        for machine, share in candidate.needs.items():
            if machine in last_waiting:
                continue
            runs, free = _room(share, on_machine.get(machine, ()), slots)
            devices[machine] = free
            if runs or unknown:
                obstacles.append(Obstacle(machine, runs or unknown, False))
        if obstacles:
            last_waiting.update(dict.fromkeys(candidate.needs, candidate.run))
        else:
            taken = {machine: share._replace(devices=devices[machine]) for machine, share in candidate.needs.items()}
            _occupy(on_machine, candidate.run, taken)
        yield Verdict(candidate.run, {} if obstacles else devices, tuple(obstacles))


def _occupy(on_machine: dict[str, list[tuple[str, Share]]], run: str, shares: Mapping[str, Share]) -> None:
    for machine, share in shares.items():
        on_machine.setdefault(machine, []).append((run, share))


def _room(share: Share, there: Sequence[tuple[str, Share]], slots: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the runs that leave no room for a share of their machine, and otherwise the GPUs for it."""
    if share.gpus:
        held = {device for _, other in there for device in other.devices}
        free = tuple(device for device in share.devices if device not in held)[: share.gpus]
        greedy = tuple(run for run, other in there if other.gpus is None)
        if not greedy and len(free) == share.gpus:
            return (), free
        return greedy or tuple(run for run, other in there if set(other.devices) & set(share.devices)), ()
    with_gpus = tuple(run for run, other in there if other.gpus)
    others = tuple(run for run, other in there if not other.gpus)
    found = others if len(others) >= slots else ()
    return (with_gpus + found if share.gpus is None else found), ()
