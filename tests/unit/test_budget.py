"""Budgets: how often, after which wait, and when it is a loop."""

from __future__ import annotations

import pytest

from tflaunch.job import budget
from tflaunch.job.budget import ALIKE, MOST_FREE, QUICK, Answer, Budget, Failure
from tflaunch.spec import Restart

pytestmark = pytest.mark.unit

RULES = Restart(max=2, window=100, backoff=(1, 8))


def spend(failures: list[Failure], rules: Restart = RULES, gap: float = 1.0) -> list[Answer]:
    """Return the answers to failures that follow each other after ``gap`` seconds."""
    answers, spent = [], Budget()
    for number, failure in enumerate(failures):
        answers.append(budget.ask(spent, rules, failure, 1000 + number * gap, "job"))
        spent = answers[-1].budget
    return answers


def long_lived(kind: str = "died", is_free: bool = False) -> Failure:
    """Return the end of an attempt that had worked for long."""
    return Failure(kind, QUICK * 10, is_free)


def test_a_budget_is_spent_and_says_so() -> None:
    """So many restarts within the window; the sentence gives both numbers."""
    answers = spend([long_lived()] * 3)
    assert [answer.wait is None for answer in answers] == [False, False, True]
    assert answers[-1].refusal == "restarted 2 times within 100 s"


def test_the_window_moves_on() -> None:
    """What was long ago does not count."""
    assert all(answer.wait is not None for answer in spend([long_lived()] * 20, gap=51))


def test_never_means_never() -> None:
    """Not even for a task that was preempted."""
    never = RULES._replace(max=0)
    assert budget.ask(Budget(), never, long_lived(is_free=True), 0, "job").refusal == "restart.max is 0"


def test_a_preemption_is_not_charged_but_a_loop_of_them_ends() -> None:
    """A program that always asks to be started again would go round for ever."""
    answers = spend([long_lived(is_free=True)] * (MOST_FREE + 1))
    assert all(answer.wait is not None for answer in answers[:-1])
    assert answers[-1].wait is None
    assert not answers[-1].budget.charged
    after = budget.ask(answers[3].budget, RULES, long_lived(), 1010, "job")
    assert (after.wait is not None, len(after.budget.charged)) == (True, 1)


def test_the_same_quick_failure_again_and_again_is_a_loop() -> None:
    """Whatever is left of the budget; another failure in between breaks the row, and so does work."""
    rich = RULES._replace(max=50)
    quick, other = Failure("worker:1 7", 0.5), Failure("worker:1 9", 0.5)
    assert spend([quick] * ALIKE, rich)[-1].refusal.startswith("a crash loop: 3 times in a row the same")
    assert all(answer.wait is not None for answer in spend([quick, quick, other, quick, quick, other], rich))
    assert all(answer.wait is not None for answer in spend([quick, quick, long_lived("worker:1 7"), quick], rich))


def test_waits_double_up_to_the_longest_and_are_a_little_shorter_by_chance() -> None:
    """By a chance that the journal gives again, and that differs between jobs."""
    rich = RULES._replace(max=50)
    waits = [answer.wait or 0 for answer in spend([long_lived()] * 6, rich)]
    for wait, whole in zip(waits, [1, 2, 4, 8, 8, 8], strict=True):
        assert 0.75 * whole <= wait <= whole
    assert waits == [answer.wait for answer in spend([long_lived()] * 6, rich)]
    many = Budget(charged=(0.0,) * 5000)
    assert 6 <= (budget.ask(many, RULES._replace(max=10000), long_lived(), 1, "job").wait or 0) <= 8
    assert (
        budget.ask(Budget(), rich, long_lived(), 0, "job").wait != budget.ask(Budget(), rich, long_lived(), 0, "b").wait
    )
