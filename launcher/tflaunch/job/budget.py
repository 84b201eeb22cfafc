"""Budgets: how often something may be started again, after which wait, and when that is a loop."""

from __future__ import annotations

import zlib
from typing import NamedTuple

from tflaunch.spec import Restart

MOST_FREE = 10
"""Restarts within the window that are not charged: a program that always says "start me again" loops."""

QUICK = 10.0
"""Seconds: an attempt that failed sooner has done no work worth repeating."""

ALIKE = 3
"""So many quick failures of one kind in a row are a loop, whatever is left of the budget."""

_MOST_DOUBLINGS = 64  # any wait is the longest by then, and numbers do not end well

_JITTER = 0.25  # so that jobs that failed together do not return together


class Failure(NamedTuple):
    """How an attempt ended: ``kind`` tells failures apart ("": not the program's), ``lived`` is in seconds.

    ``is_free``: it was no failure (preempted, after saving), so the budget is not charged.
    """

    kind: str
    lived: float
    is_free: bool = False


class Budget(NamedTuple):
    """What was spent: the times of restarts, in seconds of the supervisor's clock, charged or free.

    ``alike`` counts quick failures of the kind ``last`` in a row.
    """

    charged: tuple[float, ...] = ()
    free: tuple[float, ...] = ()
    last: str = ""
    alike: int = 0


class Answer(NamedTuple):
    """Whether there may be another attempt: after ``wait`` seconds, or not, because of ``refusal``."""

    budget: Budget
    wait: float | None
    refusal: str = ""


def ask(budget: Budget, restart: Restart, failure: Failure, now: float, salt: str) -> Answer:
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
    is_quick = failure.kind != "" and failure.lived < QUICK and not failure.is_free
    alike = (budget.alike + 1 if failure.kind == budget.last else 1) if is_quick else 0
    budget = budget._replace(last=failure.kind, alike=alike)
    if alike >= ALIKE:
        return Answer(budget, None, f"a crash loop: {alike} times in a row the same, within {QUICK:g} s of the start")
    earlier = budget.free if failure.is_free else budget.charged
    recent = [moment for moment in earlier if now - moment < restart.window]
    if len(recent) >= (MOST_FREE if failure.is_free else restart.max):
        what = "asked to be started again" if failure.is_free else "restarted"
        return Answer(budget, None, f"{what} {len(recent)} times within {restart.window:g} s")
    wait = _wait(restart, len(recent), f"{salt} {len(earlier)}")
    spent = (*earlier, now)
    return Answer(budget._replace(free=spent) if failure.is_free else budget._replace(charged=spent), wait)


def _wait(restart: Restart, recent: int, salt: str) -> float:
    """The exponential backoff, a little shortened; pure, so that a journal gives the same again."""
    first, longest = restart.backoff
    share = zlib.crc32(salt.encode("utf-8")) / 2**32
    return doubled(first, recent, longest) * (1 - _JITTER * share)


def doubled(first: float, times: int, longest: float) -> float:
    """Return a wait that has doubled so often, at most the longest."""
    return float(min(first * 2.0 ** min(times, _MOST_DOUBLINGS), longest))
