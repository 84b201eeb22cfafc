"""Which runs of the queue can begin, and what the others wait for. Pure.

The oldest begins first. A later one overtakes it only if they share no machine, so that runs that need little cannot
keep one that needs much waiting.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from tflaunch.features.queue.host_shares import Share

Shares = Mapping[str, Share]
"""What a run needs or holds of each machine."""


class Obstacle(NamedTuple):
    """Runs that hold a machine, or with `is_ahead` wait for it, too, and longer."""

    machine: str
    runs: tuple[str, ...]
    is_ahead: bool


class Verdict(NamedTuple):
    """The GPUs of each machine with which a run begins, or its obstacles."""

    devices: Mapping[str, tuple[str, ...]]
    obstacles: tuple[Obstacle, ...]


def decide(waiting: Mapping[str, Shares], holders: Mapping[str, Shares | None], slots: int) -> Iterator[Verdict]:
    """Yield what happens to each run that waits.

    Args:
        waiting: what they need, the oldest first.
        holders: what other runs hold; None if that is not known yet.
        slots: how many runs may be on a machine at once, apart from those that have GPUs of their own there.
    """
    unknown = tuple(run for run, shares in holders.items() if shares is None)
    on_machine: dict[str, list[tuple[str, Share]]] = {}
    for run, shares in holders.items():
        _occupy(on_machine, run, shares or {})
    last_waiting: dict[str, str] = {}
    for run, needs in waiting.items():
        obstacles, devices = [], {}
        for machine, share in needs.items():
            if machine in last_waiting:
                obstacles.append(Obstacle(machine, (last_waiting[machine],), True))
                continue
            runs, devices[machine] = _room(share, on_machine.get(machine, ()), slots)
            if runs or unknown:
                obstacles.append(Obstacle(machine, runs or unknown, False))
        if obstacles:
            last_waiting.update(dict.fromkeys(needs, run))
        else:
            taken = {machine: share._replace(devices=devices[machine]) for machine, share in needs.items()}
            _occupy(on_machine, run, taken)
        yield Verdict({} if obstacles else devices, tuple(obstacles))


def _occupy(on_machine: dict[str, list[tuple[str, Share]]], run: str, shares: Shares) -> None:
    for machine, share in shares.items():
        on_machine.setdefault(machine, []).append((run, share))


def _room(share: Share, there: Sequence[tuple[str, Share]], slots: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the runs that leave too little for a share, otherwise its GPUs."""
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
