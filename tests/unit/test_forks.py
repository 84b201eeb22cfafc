"""A task that may have ended because it was forked starts in the ordinary way, and nobody pays for it."""

from typing import Any

import pytest

from support.job_history import HERE, History
from support.specs import clustered
from tflaunch.core.actions import StartTask
from tflaunch.core.events import PortOpened, PortsHeld, TaskStarted
from tflaunch.core.job_state import Phase

SEGV, ABRT, KILL, TERM = 11, 6, 9, 15
WHY = "worker:0 ended with SIGSEGV after it was forked from a process that had imported tensorflow"
CRASH: dict[str, Any] = {"code": None, "signal": SEGV}
IMPORT_ERROR: dict[str, Any] = {"code": 1, "failure": "ImportError at train.py:3"}
NO_MEMORY: dict[str, Any] = {"code": 127, "failure": "output 1f0c2a"}


def forked(preload: str = "tensorflow", **fields: Any) -> History:
    """Return a job of two workers that have just started, and do not listen yet."""
    history = History(clustered({"worker": 2}, **fields)).start_without_ports()
    return history.happens(*(TaskStarted(HERE, f"worker:{n}", 0, n + 1, 0.0, preload) for n in range(2)))


def starts(history: History) -> list[StartTask]:
    """Return how the next attempt begins, once its hosts hold their ports."""
    assert history.job.phase is Phase.BACKING_OFF
    history.wait().happens(PortsHeld(HERE, {"worker:0": 10000, "worker:1": 10001}))
    return [action for action in history.actions if isinstance(action, StartTask)]


def fails(history: History, **end: Any) -> History:
    return history.ends("worker:0", **end).ends("worker:1", code=None, signal=KILL, was_told=True)


@pytest.mark.parametrize("most", [0, 3])
@pytest.mark.parametrize("end", [CRASH, {"code": None, "signal": ABRT}, IMPORT_ERROR, NO_MEMORY])
def test_a_crash_of_a_fork_costs_no_restart(end: dict[str, Any], most: int) -> None:
    """Even if there are none; all tasks of later attempts execute their programs."""
    history = fails(forked(restart={"max": most}), **end)
    assert history.job.restarts.budget.charged == ()
    ordered = starts(history)
    assert len(ordered) == 2
    assert all("forked from a process" in action.unforked for action in ordered)


def test_it_happens_once() -> None:
    """The program crashes anyway: then that is its own failure."""
    history = fails(forked(restart={"max": 0}), **CRASH)
    starts(history)
    history.happens(*(TaskStarted(HERE, f"worker:{n}", 1, n + 1, 0.0, f"no: {WHY}") for n in range(2)))
    fails(history, **CRASH)
    assert (history.job.phase, history.job.exit_code) == (Phase.ENDED, 128 + SEGV)


@pytest.mark.parametrize(
    "end",
    [
        {"code": None, "signal": KILL},
        {"code": 1, "failure": "ModuleNotFoundError at train.py:3"},
        {"code": 1, "failure": "ValueError at train.py:9"},
        {**CRASH, "step": 7},
        {**CRASH, "was_told": True},
    ],
)
def test_other_ends_are_not_blamed_on_the_fork(end: dict[str, Any]) -> None:
    """Who kills a task from outside, what a program raises by itself, and what comes after its start."""
    history = fails(forked(restart={"max": 0}), **end)
    assert (history.job.phase, history.job.unforked) == (Phase.ENDED, "")


@pytest.mark.parametrize("preload", ["", "no: its program sets a variable"])
def test_what_was_not_forked_is_not_tried_again(preload: str) -> None:
    assert fails(forked(preload, restart={"max": 0}), **CRASH).job.phase is Phase.ENDED


def test_what_listens_has_started() -> None:
    history = forked(restart={"max": 0}).happens(PortOpened(HERE, "worker:0", 0))
    assert fails(history, **CRASH).job.phase is Phase.ENDED


def test_a_task_restarts_alone() -> None:
    """An evaluator: the others go on."""
    history = History(clustered({"worker": 2, "evaluator": 1}, restart={"max": 0})).start_without_ports()
    history.happens(TaskStarted(HERE, "evaluator:0", 0, 3, 0.0, "tensorflow")).ends("evaluator:0", **CRASH).wait()
    (again,) = (action for action in history.actions if isinstance(action, StartTask))
    assert (again.task, again.attempt) == ("evaluator:0", 1)
    assert again.unforked.startswith("evaluator:0 ended with SIGSEGV")
    history.happens(TaskStarted(HERE, "evaluator:0", 1, 4, 0.0, f"no: {again.unforked}")).ends("evaluator:0", **CRASH)
    assert history.job.tasks["evaluator:0"].resume_at is None
