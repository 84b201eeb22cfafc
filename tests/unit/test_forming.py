"""A cluster that does not form, in `ps --json`; and which failures count as start-up failures."""

from __future__ import annotations

from typing import Any

import pytest

from support.job_history import HERE, History, mirrored, parameter_server
from support.specs import clustered
from tflaunch.core import policy
from tflaunch.core.events import (
    HostJoined,
    HostLost,
    Interrupted,
    LinkLost,
    PortOpened,
    PortsHeld,
    StopRequested,
    TaskExited,
    TaskGone,
    TaskStarted,
    TimePassed,
)
from tflaunch.core.job_state import Phase
from tflaunch.explain.run_status import Status
from tflaunch.explain.status import StatusInputs, state_of_run, status

pytestmark = pytest.mark.unit

EPOCH = 1_000_000.0


def starting(workers: int, *opened: str) -> History:
    """Return a mirrored job whose workers run, and listen if they are ``opened``."""
    history = History(clustered({"worker": workers})).happens(HostJoined(HERE))
    names = [f"worker:{number}" for number in range(workers)]
    history.happens(PortsHeld(HERE, {name: 20000 + number for number, name in enumerate(names)}))
    history.happens(*(TaskStarted(HERE, name, 0, 1, 0.0) for name in names))
    return history.happens(*(PortOpened(HERE, name, 0) for name in opened))


def told(history: History) -> Status:
    """Return the status of a job."""
    return status(history.job, StatusInputs(EPOCH, "/logs", True, history.now))


def states(history: History) -> list[tuple[str, bool | None]]:
    """Return each task's state, and whether it listens."""
    return [(task.state, task.listening) for task in told(history).tasks]


def test_who_does_not_listen_is_in_the_status_after_a_minute() -> None:
    history = starting(2, "worker:0")
    began = history.now
    history.now += policy.WARN_AFTER - 1
    assert states(history) == [("running", True), ("running", False)]
    assert told(history).forming is None
    history.now += 1
    history.happens(TimePassed())
    assert states(history) == [("running", True), ("waiting", False)]
    shown = told(history)
    assert shown.tasks[1].waiting_since == began + EPOCH
    forming = shown.forming
    assert forming is not None
    assert forming[:3] == (began + EPOCH, ("worker:1",), ("worker:0",))
    assert "tflaunch logs" in forming.hint
    history.happens(PortOpened(HERE, "worker:1", 0))
    assert told(history).forming is None
    assert states(history) == [("running", True), ("running", True)]


def test_only_members_of_a_cluster_can_be_waited_for() -> None:
    alone = starting(1)
    alone.now += 3600
    assert states(alone.happens(TimePassed())) == [("running", False)]
    assert told(alone).forming is None
    apart = History(clustered({"worker": 2}, strategy="none")).start()
    assert states(apart) == [("running", None), ("running", None)]


def test_a_host_that_is_not_heard_is_worse() -> None:
    history = starting(2)
    history.now += policy.WARN_AFTER
    history.happens(TimePassed(), LinkLost(HERE, "cut"))
    assert {state for state, _ in states(history)} == {"disconnected"}


def test_the_culprit_has_failed_and_its_victims_were_stopped() -> None:
    """Although the culprit, too, was told to end its remaining processes."""
    history = mirrored(2, restart={"max": 0})
    history.happens(TaskExited(HERE, "worker:0", 0, 7, None, 0.0))
    assert [state for state, _ in states(history)] == ["failed", "stopping"]
    history.happens(TaskGone(HERE, "worker:0", 0)).ends("worker:1", None, 9)
    assert [state for state, _ in states(history)] == ["failed", "stopped"]
    assert told(history).state == "failed"


def test_tasks_of_a_lost_host_are_lost() -> None:
    history = mirrored(1, restart={"max": 0}).happens(HostLost(HERE, "no power"))
    assert [state for state, _ in states(history)] == ["lost"]


def test_how_a_run_has_ended_is_one_word() -> None:
    running = mirrored(1)
    assert told(running).state == "running"
    for event, state in ((Interrupted(2), "interrupted"), (StopRequested(1.0), "stopped")):
        assert told(mirrored(1).happens(event).ends("worker:0", None, 15)).state == state
    assert told(running.ends("worker:0")).state == "succeeded"
    assert state_of_run(running.job, 130) == "interrupted"


def test_the_cause_of_a_restart_is_kept() -> None:
    history = mirrored(1).happens(TaskExited(HERE, "worker:0", 0, 1, None, 0.0, failure="ValueError at train.py:41"))
    shown = told(history.happens(TaskGone(HERE, "worker:0", 0)).wait().start())
    assert shown.culprit is None
    assert shown.last_failure == "worker:0 exited with code 1 (ValueError at train.py:41)"
    assert (shown.restarts, shown.restart, shown.max_restarts) == (1, "restart 1 of 3", 3)


def test_a_cluster_stays_formed_while_workers_return_one_after_the_other() -> None:
    """The start limit applies to the first start only."""
    history = parameter_server(timeouts={"start": 30}, restart={"backoff": [1, 1]})
    history.ends("worker:0", None, 9).ends("worker:1", None, 9)
    history.now += 100
    history.happens(TimePassed(), TaskStarted(HERE, "worker:0", 1, 2, 0.0), PortOpened(HERE, "worker:0", 1))
    assert history.job.formation.is_complete
    assert history.happens(TimePassed()).job.phase is Phase.RUNNING


@pytest.mark.parametrize(
    ("code", "is_retried"),
    [(1, False), (125, False), (128, False), (200, False), (255, False), (137, True), (143, True)],
)
def test_plain_errors_of_start_up_are_not_retried(code: int, is_retried: bool) -> None:
    """Regardless of their code; a shell exits with 128 + N when a signal killed its command."""
    history = starting(2, "worker:1").ends("worker:0", code).ends("worker:1", None, 9)
    assert (history.job.phase is Phase.BACKING_OFF) is is_retried
    reason = "" if is_retried else "it failed during start-up, so a retry would fail too"
    assert history.job.restarts.no_retry_reason == reason


@pytest.mark.parametrize(
    ("failure", "code", "number", "reason"),
    [
        ("ModuleNotFoundError at train.py:3", 1, None, "a retry on the same host would fail too: ModuleNotFoundError"),
        ("SyntaxError at train.py:3", 1, None, "a retry on the same host would fail too: SyntaxError"),
        ("usage error", 2, None, "a retry on the same host would fail too: usage error"),
        ("KeyboardInterrupt at train.py:9", None, 2, "it was interrupted (KeyboardInterrupt)"),
        ("KeyboardInterrupt at train.py:9", 130, None, "it was interrupted (KeyboardInterrupt)"),
        ("ValueError at train.py:9", 1, None, ""),
        ("ImportError at train.py:9", 1, None, ""),
        ("output 0123456789ab", 2, None, ""),
    ],
)
@pytest.mark.parametrize("is_formed", [True, False])
def test_some_failures_are_retried_on_no_host(
    failure: str, code: int | None, number: int | None, reason: str, is_formed: bool
) -> None:
    """However late they come: imports from a slow disk take minutes."""
    history = starting(2, *["worker:0", "worker:1"] * is_formed)
    history.now += 3600
    history.happens(TimePassed()).ends("worker:1", code, number, failure=failure).ends("worker:0", None, 9)
    assert (history.job.phase is Phase.BACKING_OFF) is not bool(reason)
    assert history.job.restarts.no_retry_reason.startswith(reason)


def test_the_minute_of_the_start_begins_with_the_last_task() -> None:
    """What is preloaded may take longer to import."""
    history = History(clustered({"worker": 2}))
    history.happens(HostJoined(HERE), PortsHeld(HERE, {"worker:0": 20000, "worker:1": 20001}))
    history.happens(TaskStarted(HERE, "worker:0", 0, 1, 0.0))
    history.now += 50
    history.happens(TaskStarted(HERE, "worker:1", 0, 1, 0.0))
    history.now += 59
    assert not history.happens(TimePassed()).job.formation.was_warned
    history.now += 1
    forming = told(history.happens(TimePassed())).forming
    assert forming is not None
    assert forming.since == EPOCH + history.now - policy.WARN_AFTER


@pytest.mark.parametrize(("lived", "reason"), [(1, "crash loop: the same failure 3 times"), (60, "restarted 5 times")])
def test_a_kill_soon_after_a_late_start_comes_soon_after_the_start(lived: float, reason: str) -> None:
    """One from outside that always comes then may be the program's own; what was preloaded before does not count."""
    history = History(clustered({"worker": 1}, restart={"max": 5, "backoff": [1, 1]})).happens(HostJoined(HERE))
    for attempt in range(6):
        history.happens(PortsHeld(HERE, {"worker:0": 20000 + attempt}))
        history.now += 50
        history.happens(TaskStarted(HERE, "worker:0", attempt, 1, 0.0))
        history.now += lived
        if history.ends("worker:0", None, 9).job.phase is Phase.ENDED:
            break
        history.wait()
    assert history.job.restarts.no_retry_reason.startswith(reason)


def test_a_program_that_never_opens_its_port_does_start() -> None:
    """It may use a resolver of its own: a failure after hours is never a start-up failure."""
    history = starting(1)
    history.now += 3600
    history.happens(TimePassed())
    history.happens(TaskExited(HERE, "worker:0", 0, 1, None, 0.0), TaskGone(HERE, "worker:0", 0))
    assert history.job.phase is Phase.BACKING_OFF


@pytest.mark.parametrize(("progress", "is_retried"), [({"step": 3}, True), ({"epoch": 1}, True), ({}, False)])
def test_a_task_that_has_begun_to_train_does_not_fail_at_start_up(progress: dict[str, Any], is_retried: bool) -> None:
    """Even if the port of another task has not been seen yet; a checkpoint may be that of an earlier run."""
    history = starting(2, "worker:1").happens(TaskExited(HERE, "worker:1", 0, 1, None, 0.0, **progress))
    history.happens(TaskGone(HERE, "worker:1", 0, 7)).ends("worker:0", None, 9)
    assert (history.job.phase is Phase.BACKING_OFF) is is_retried


def test_no_task_fails_at_start_up_once_another_has_begun_to_train() -> None:
    """The cluster works, so the failure is not certain to come again."""
    history = starting(2, "worker:1").happens(TaskExited(HERE, "worker:1", 0, 1, None, 0.0))
    history.happens(TaskGone(HERE, "worker:1", 0), TaskExited(HERE, "worker:0", 0, 1, None, 0.0, epoch=1))
    assert history.happens(TaskGone(HERE, "worker:0", 0)).job.phase is Phase.BACKING_OFF
