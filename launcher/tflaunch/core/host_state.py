"""The state of one host: an immutable value, replaced only by `step.step`."""

from __future__ import annotations

from collections.abc import Hashable
from enum import Enum
from typing import NamedTuple

CODE, NAMES, PEERS, CHECKPOINT = "code", "names", "peers", "checkpoint"
"""Tags of hosts that are not down, in addition to their phase: see `HostState.awaits`."""

TIMED = "timed"
"""Tag of hosts with a deadline (a fence or a retry), in addition to their phase."""

SPARE, COLD = "spare", "cold"
"""Tags of spare hosts, which have their other tags paired with the first; COLD: can import modules, and has not yet."""


class HostPhase(Enum):
    """Phase of a host's agent."""

    DOWN = "down"
    """No agent: it was never started, or has certainly ended together with its tasks."""
    JOINING = "joining"
    """It is being started."""
    CONNECTED = "connected"
    """Connected: it executes requests."""
    DISCONNECTED = "disconnected"
    """The link to it is lost; until the fence has passed, its tasks may be alive."""
    LEAVING = "leaving"
    """Connected, but stopping its tasks: its lease has expired, or it was asked on its host to stop."""


class HostState(NamedTuple):
    """State of one host. Times are seconds of the supervisor's clock.

    ``reason`` says why it is down or disconnected, ``since`` is when that became known, or when its link was restored;
    ``fence_at`` is when it is certainly dead, or no longer waited for if it is leaving; ``away_since`` is when it was
    given up, None once it has joined again. ``awaits`` is what is still missing: a copy of the user's code (`CODE`),
    the addresses of the others' names (`NAMES`), whether it can reach them (`PEERS`), or the newest checkpoint
    (`CHECKPOINT`). ``is_drained``: it leaves because its host is being drained. ``failures`` counts consecutive losses
    of a host that had joined; ``joined_at`` is when it last joined; ``retry_at`` is when to try it again while the job
    runs without it. ``code`` is the directory with the user's code on the host, "" if none was copied. ``addresses`` is
    as in `events.HostJoined`.

    ``stands_for`` is the host of the compiled plan whose tasks are on this one: itself, unless it has taken the place
    of another; "" for a spare host. ``flaw`` says why it cannot become one again, "" if it can. ``is_warm``: as a spare
    host it was asked to import the modules of the tasks.
    """

    host: str
    phase: HostPhase = HostPhase.JOINING
    reason: str = ""
    awaits: frozenset[str] = frozenset()
    since: float = 0.0
    fence_at: float | None = None
    away_since: float | None = None
    is_drained: bool = False
    failures: int = 0
    joined_at: float = 0.0
    retry_at: float | None = None
    code: str = ""
    addresses: str = ""
    stands_for: str = ""
    flaw: str = ""
    is_warm: bool = False

    @property
    def is_spare(self) -> bool:
        """Whether it has no tasks, and may take the place of a lost host."""
        return not self.stands_for

    @property
    def can_take_over(self) -> bool:
        """Whether it is a spare host that can take the place of a lost one at once."""
        is_whole = self.phase is HostPhase.CONNECTED and CODE not in self.awaits
        return self.is_spare and is_whole and not self.flaw

    @property
    def tags(self) -> tuple[Hashable, ...]:
        """The tags by which the host table counts this host."""
        is_timed = self.fence_at is not None or self.retry_at is not None
        awaited = self.awaits if self.phase is not HostPhase.DOWN else ()
        tags: tuple[Hashable, ...] = (self.phase, *awaited)
        if self.is_spare:
            tags = (SPARE, *((SPARE, tag) for tag in tags))
            if self.can_take_over and not self.is_warm:
                tags = (*tags, COLD)
        return (*tags, TIMED) if is_timed else tags
