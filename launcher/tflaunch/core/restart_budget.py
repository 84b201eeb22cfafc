"""Restart budgets: how often and after what wait to restart.

A restart after new progress is free, because the training advances. Repeated equal failures without new progress are
the program's own, and no restart fixes them. Every other restart is charged to a budget within a window.
"""

from __future__ import annotations

import zlib
from typing import NamedTuple

from tflaunch.plan.model import RestartPlan
from tflaunch_worker.readable import duration_words

MOST_FREE = 10
"""Maximum of uncharged restarts within the window: a program could ask for restarts in a loop."""

QUICK = 10.0
"""Seconds; an attempt that fails sooner has done no work worth repeating."""

ALIKE = 3
"""Consecutive equal failures without new progress that end the job, whatever the budget."""

_MOST_DOUBLINGS = 64  # the backoff is capped long before; avoids overflow

_JITTER = 0.25  # share of the wait; keeps jobs that failed together from restarting together


class Reached(NamedTuple):
    """Progress of a training; 0 for what is not known."""

    step: int = 0
    epoch: int = 0
    checkpoint: int = 0

    def is_beyond(self, other: Reached) -> bool:
        """Whether any of the three is further than in ``other``."""
        return any(mine > theirs for mine, theirs in zip(self, other, strict=True))

    def furthest(self, other: Reached) -> Reached:
        """Return the larger value of each of the three."""
        return Reached(*map(max, self, other))

    def __str__(self) -> str:
        """Return the known numbers: ``step 400, epoch 3``."""
        return ", ".join(f"{name} {value}" for name, value in zip(self._fields, self, strict=True) if value)


class Failure(NamedTuple):
    """How an attempt ended.

    ``kind`` distinguishes failures of the program, "" if the failure was not its own. ``is_free``: this was not a
    failure of the program (preempted after saving, its host was lost), so the budget is not charged. ``what`` describes
    the kind to users. ``most``: how many of the kind in a row end the job. ``is_ours``: the way in which tflaunch had
    started it may be the cause, so that it is tried in another way even if there are no restarts.
    """

    kind: str
    is_free: bool = False
    reached: Reached = Reached()
    what: str = ""
    most: int = ALIKE
    is_ours: bool = False


class Budget(NamedTuple):
    """Times of charged and free restarts, in seconds of the supervisor's clock.

    ``advanced`` counts restarts after progress beyond ``furthest``, the best progress of any earlier attempt.
    ``alike`` counts consecutive failures of the kind ``last`` without new progress in between.
    """

    charged: tuple[float, ...] = ()
    free: tuple[float, ...] = ()
    last: str = ""
    alike: int = 0
    advanced: int = 0
    furthest: Reached = Reached()

    @property
    def restarts(self) -> int:
        """Number of restarts so far."""
        return len(self.charged) + len(self.free) + self.advanced


class Answer(NamedTuple):
    """Decision on a retry: after ``wait`` seconds, or None with ``no_retry_reason``."""

    budget: Budget
    wait: float | None
    no_retry_reason: str = ""


def decide_restart(budget: Budget, restart: RestartPlan, failure: Failure, now: float, salt: str) -> Answer:
    """Return whether another attempt may follow a failure.

    ``salt`` makes the jitter of this budget differ from that of others.
    """
    if restart.max == 0 and not failure.is_ours:
        return Answer(budget, None, "restart.max is 0")
    has_advanced = failure.reached.is_beyond(budget.furthest)
    budget = _count_alike(budget, failure, has_advanced)
    if budget.alike >= failure.most:
        what = f" ({failure.what})" if failure.what else ""
        return Answer(budget, None, f"crash loop: the same failure {budget.alike} times without progress{what}")
    if has_advanced:
        furthest = budget.furthest.furthest(failure.reached)
        budget = budget._replace(advanced=budget.advanced + 1, furthest=furthest)
        return Answer(budget, _wait(restart, 0, f"{salt} {budget.restarts}"))
    earlier = budget.free if failure.is_free else budget.charged
    recent = [moment for moment in earlier if now - moment < restart.window]
    if len(recent) >= (MOST_FREE if failure.is_free else restart.max):
        often = "once" if len(recent) == 1 else f"{len(recent)} times"
        limit = "without a failure" if failure.is_free else f"which is restart.max ({restart.max})"
        return Answer(budget, None, f"restarted {often} within {duration_words(restart.window)}, {limit}")
    wait = _wait(restart, len(recent), f"{salt} {len(earlier)}")
    spent = (*earlier, now)
    return Answer(budget._replace(free=spent) if failure.is_free else budget._replace(charged=spent), wait)


def _count_alike(budget: Budget, failure: Failure, has_advanced: bool) -> Budget:
    """Count consecutive failures of one kind, across losses of hosts."""
    if failure.is_free or not failure.kind:
        return budget._replace(alike=0) if has_advanced else budget
    is_same = failure.kind == budget.last and not has_advanced
    return budget._replace(last=failure.kind, alike=budget.alike + 1 if is_same else 1)


def _wait(restart: RestartPlan, recent: int, salt: str) -> float:
    """Return the backoff less jitter, which a replay gives again."""
    first, longest = restart.backoff
    share = zlib.crc32(salt.encode("utf-8")) / 2**32
    return doubled_delay(first, recent, longest) * (1 - _JITTER * share)


def doubled_delay(first: float, times: int, longest: float) -> float:
    """Return ``first`` doubled this number of times, at most ``longest``."""
    return float(min(first * 2.0 ** min(times, _MOST_DOUBLINGS), longest))
