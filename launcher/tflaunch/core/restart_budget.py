"""Budgets: how often something may be started again, after which wait, and when that is not worthwhile.

A restart after newer progress is free: the training goes on. The same failure again and again without newer progress
is the program's own, and no restart mends it. What is left is charged to a budget within a window.
"""

from __future__ import annotations

import zlib
from typing import NamedTuple

from tflaunch.plan.model import RestartPlan

MOST_FREE = 10
"""Restarts within the window that are not charged: a program that always says "start me again" loops."""

QUICK = 10.0
"""Seconds: an attempt that failed sooner has done no work worth repeating."""

ALIKE = 3
"""Failures of one kind in a row, without newer progress, that end the job whatever is left of the budget."""

_MOST_DOUBLINGS = 64  # any wait is the longest by then, and numbers do not end well

_JITTER = 0.25  # so that jobs that failed together do not return together


class Reached(NamedTuple):
    """How far a training came: its step and epoch, and the number of its newest checkpoint; 0 for what is not known."""

    step: int = 0
    epoch: int = 0
    checkpoint: int = 0

    def is_beyond(self, other: Reached) -> bool:
        """Whether this is further than another in any of the three."""
        return any(mine > theirs for mine, theirs in zip(self, other, strict=True))

    def furthest(self, other: Reached) -> Reached:
        """Return the further one of each of the three."""
        return Reached(*map(max, self, other))

    def __str__(self) -> str:
        """Name what is known, for example ``step 400, epoch 3``."""
        return ", ".join(f"{name} {value}" for name, value in zip(self._fields, self, strict=True) if value)


class Failure(NamedTuple):
    """How an attempt ended.

    ``kind`` tells failures of the program from each other, "" when the failure was not its own. ``is_free``: it was
    no failure (preempted, after saving), so the budget is not charged. ``what`` names the kind for people.
    """

    kind: str
    is_free: bool = False
    reached: Reached = Reached()
    what: str = ""


class Budget(NamedTuple):
    """What was spent: the times of restarts, in seconds of the supervisor's clock, charged or free.

    ``advanced`` counts the restarts that followed newer progress than ``furthest``, which is the furthest that any
    attempt came. ``alike`` counts failures of the kind ``last`` in a row, without newer progress in between.
    """

    charged: tuple[float, ...] = ()
    free: tuple[float, ...] = ()
    last: str = ""
    alike: int = 0
    advanced: int = 0
    furthest: Reached = Reached()

    @property
    def restarts(self) -> int:
        """How many restarts there were."""
        return len(self.charged) + len(self.free) + self.advanced


class Answer(NamedTuple):
    """Whether there may be another attempt: after ``wait`` seconds, or not, because of ``refusal``."""

    budget: Budget
    wait: float | None
    refusal: str = ""


def ask(budget: Budget, restart: RestartPlan, failure: Failure, now: float, salt: str) -> Answer:
    """Return whether another attempt may follow a failure.

    Args:
        budget: what was spent before.
        restart: the rules of the spec; ``max`` 0 means never, not even for free.
        failure: what has happened.
        now: the time, on the same clock as the budget's.
        salt: makes the jitter of this budget differ from others'.
    """
    if restart.max == 0:
        return Answer(budget, None, "restart.max is 0")
    has_advanced = failure.reached.is_beyond(budget.furthest)
    budget = _count_alike(budget, failure, has_advanced)
    if budget.alike >= ALIKE:
        what = f" ({failure.what})" if failure.what else ""
        return Answer(budget, None, f"crash loop: the same failure {budget.alike} times without progress{what}")
    if has_advanced:
        furthest = budget.furthest.furthest(failure.reached)
        budget = budget._replace(advanced=budget.advanced + 1, furthest=furthest)
        return Answer(budget, _wait(restart, 0, f"{salt} {budget.restarts}"))
    earlier = budget.free if failure.is_free else budget.charged
    recent = [moment for moment in earlier if now - moment < restart.window]
    if len(recent) >= (MOST_FREE if failure.is_free else restart.max):
        what = "asked to be restarted" if failure.is_free else "restarted"
        return Answer(budget, None, f"{what} {len(recent)} times within {restart.window:g} s")
    wait = _wait(restart, len(recent), f"{salt} {len(earlier)}")
    spent = (*earlier, now)
    return Answer(budget._replace(free=spent) if failure.is_free else budget._replace(charged=spent), wait)


def _count_alike(budget: Budget, failure: Failure, has_advanced: bool) -> Budget:
    """Count failures of one kind. A host that is lost in between says nothing about the program."""
    if failure.is_free or not failure.kind:
        return budget._replace(alike=0) if has_advanced else budget
    is_same = failure.kind == budget.last and not has_advanced
    return budget._replace(last=failure.kind, alike=budget.alike + 1 if is_same else 1)


def _wait(restart: RestartPlan, recent: int, salt: str) -> float:
    """The exponential backoff, a little shortened; pure, so that a journal gives the same again."""
    first, longest = restart.backoff
    share = zlib.crc32(salt.encode("utf-8")) / 2**32
    return doubled(first, recent, longest) * (1 - _JITTER * share)


def doubled(first: float, times: int, longest: float) -> float:
    """Return a wait that has doubled so often, at most the longest."""
    return float(min(first * 2.0 ** min(times, _MOST_DOUBLINGS), longest))
