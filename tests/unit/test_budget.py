"""Restart budgets: number of restarts, backoff, and crash loop detection."""

from __future__ import annotations

import pytest

from tflaunch.core import restart_budget
from tflaunch.core.restart_budget import ALIKE, MOST_FREE, Answer, Budget, Failure, Reached
from tflaunch.plan.model import RestartPlan

pytestmark = pytest.mark.unit

RULES = RestartPlan(max=2, window=100, backoff=(1, 8))


def spend(failures: list[Failure], rules: RestartPlan = RULES, gap: float = 1.0) -> list[Answer]:
    """Return the responses to failures ``gap`` seconds apart."""
    answers, spent = [], Budget()
    for number, failure in enumerate(failures):
        answers.append(restart_budget.decide_restart(spent, rules, failure, 1000 + number * gap, "job"))
        spent = answers[-1].budget
    return answers


LOST = Failure("")
"""An attempt that ended through no fault of the program."""
PREEMPTED = Failure("exit 143 ", is_free=True)


def test_a_preemption_is_not_charged_but_a_loop_of_them_ends() -> None:
    """A program that always asks for a restart would otherwise loop without end."""
    answers = spend([PREEMPTED] * (MOST_FREE + 1))
    assert all(answer.wait is not None for answer in answers[:-1])
    assert answers[-1].wait is None
    assert not answers[-1].budget.charged
    after = restart_budget.decide_restart(answers[3].budget, RULES, LOST, 1010, "job")
    assert (after.wait is not None, len(after.budget.charged)) == (True, 1)


RAISED = Failure("exit 1 ValueError at train.py:12", what="ValueError at train.py:12")
RICH = RULES._replace(max=50)


def at(step: int, failure: Failure = RAISED) -> Failure:
    """Return a training failure that reached this step."""
    return failure._replace(reached=Reached(step=step))


OTHER = Failure("exit 9 ")
SPENT = "within 1 min 40 s, which is restart.max"
LOOP = "crash loop: the same failure 3 times without progress (ValueError at train.py:12)"


@pytest.mark.parametrize(
    ("failures", "rules", "gap", "reason"),
    [
        ([LOST] * 3, RULES, 1, f"restarted 2 times {SPENT} (2)"),
        ([LOST] * 2, RULES._replace(max=1), 1, f"restarted once {SPENT} (1)"),
        ([LOST] * 20, RULES, 51, ""),
        ([PREEMPTED], RULES._replace(max=0), 1, "restart.max is 0"),
        ([at(100)], RULES._replace(max=0), 1, "restart.max is 0"),
        ([RAISED] * ALIKE, RULES, 1e6, LOOP),
        ([RAISED, RAISED, OTHER, RAISED, RAISED, OTHER], RICH, 1, ""),
        ([RAISED, LOST, RAISED, LOST, RAISED], RICH, 1, LOOP),
        ([at(400)] * 3, RICH, 1, LOOP),
        ([at(400), at(300), at(399)], RICH, 1, LOOP),
    ],
    ids=["budget", "one restart", "the window moves on", "never for a preemption", "never after progress",
         "each failure is outside the window before the next", "another failure, so the program is not the only cause",
         "a lost host says nothing about the program", "no checkpoints", "no newer progress"],
)  # fmt: skip
def test_when_restarts_end(failures: list[Failure], rules: RestartPlan, gap: float, reason: str) -> None:
    *before, last = spend(failures, rules, gap)
    assert all(answer.wait is not None for answer in before)
    assert (last.no_retry_reason, last.wait is None) == (reason, bool(reason))


def test_newer_progress_makes_a_restart_free_and_breaks_the_row() -> None:
    """No limit applies, and the backoff is the shortest: the training advances."""
    answers = spend([at(step) for step in range(100, 5000, 100)])
    assert all(0.75 <= (answer.wait or 0) <= 1 for answer in answers)
    assert (answers[-1].budget.charged, answers[-1].budget.free, answers[-1].budget.restarts) == ((), (), 49)


@pytest.mark.parametrize("further", [Reached(step=5), Reached(epoch=2), Reached(checkpoint=3)])
def test_any_of_the_three_kinds_of_progress_counts(further: Reached) -> None:
    """Reported steps, reported epochs, and checkpoint numbers."""
    before = Reached(step=4, epoch=1, checkpoint=2)
    assert further.is_beyond(before)
    assert not before.is_beyond(before)
    assert before.furthest(further).is_beyond(before)
    assert not before.furthest(further).is_beyond(further.furthest(before))


def test_waits_double_up_to_the_longest_and_are_a_little_shorter_by_chance() -> None:
    """The jitter is reproducible from the journal, and differs between jobs."""
    waits = [answer.wait or 0 for answer in spend([LOST] * 6, RICH)]
    for wait, whole in zip(waits, [1, 2, 4, 8, 8, 8], strict=True):
        assert 0.75 * whole <= wait <= whole
    assert waits == [answer.wait for answer in spend([LOST] * 6, RICH)]
    many = Budget(charged=(0.0,) * 5000)
    assert 6 <= (restart_budget.decide_restart(many, RULES._replace(max=10000), LOST, 1, "job").wait or 0) <= 8
    first, other = (restart_budget.decide_restart(Budget(), RICH, LOST, 0, job) for job in ("job", "b"))
    assert first.wait != other.wait
