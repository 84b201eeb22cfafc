"""Whether a run trains, why, and what helps: one answer for every state, which never proposes to end anything."""

from typing import Any

import pytest

from support.job_history import RUN, TASK
from tflaunch.explain.assessment import assess_end, assess_waiting, assessed
from tflaunch.explain.cluster_formation import Forming
from tflaunch.explain.run_status import HangStatus, HostStatus, Status, TaskStatus

NOW = 1_000_000.0
VERBS = ("explain", "stacks", "debug", "queue", "down", "prune")
EVALUATOR = TASK._replace(task="evaluator:0", role="evaluator", pid=7, since=NOW - 5)
SILENT = HostStatus("b", "disconnected", since=NOW - 12, until=NOW + 32)
LOST: dict[str, Any] = {"supervisor": "dead", "hosts": (HostStatus("a", "connected", lease_left=20.0),)}
FORMING = Forming(NOW - 75, ("worker:1",), ("worker:0",), "do this")
STACKS = [("tflaunch", "stacks", "night")]
RESUME = [("tflaunch", "up", "-d", "--resume", "night")]
FAILED: dict[str, Any] = {"state": "failed", "exit_code": 3, "culprit": "worker:0", "reason": "worker:0 exited with 3"}


def task(number: int = 0, **fields: Any) -> TaskStatus:
    """Return a living task that has been started 100 seconds ago."""
    return TASK._replace(**{"task": f"worker:{number}", "pid": 5, "since": NOW - 100, **fields})


def run(*tasks: TaskStatus, **fields: Any) -> Status:
    return assessed(RUN._replace(tasks=tasks, started=NOW - 200, **fields), NOW, VERBS)


STEPPING: dict[str, Any] = {"step": 40.0, "epochs": 2.0, "steps_per_epoch": 50.0, "progress_age": 2.0}
GONE = task(pid=None, state="succeeded")
WAITS = "worker:0 waits at a breakpoint in train.py, line 3"
ROWS = [
    (run(task(**STEPPING)), "training", "yes", "step 40 of 100, reported 2 s ago", []),
    (run(task(epoch=3.0, progress_age=1.0)), "training", "yes", "epoch 3, reported 1 s ago", []),
    (run(task(step=4.0, progress_age=61.0)), "training", "unknown", "step 4, reported 1 min 01 s ago", STACKS),
    (run(task(step=4.0, progress_age=61.0, steps_per_second=0.01)), "training", "yes", "step 4, reported", []),
    (run(task(since=NOW - 9)), "first step", "unknown", "no step was reported yet, after 9 s", []),
    (run(task()), "first step", "unknown", "no step was reported yet, after 1 min 40 s", STACKS),
    (run(task(step=4.0), restarts=1, last_failure="x failed"), "training", "yes", "after 1 restart; the last", []),
    (run(task(listening=False), task(1)), "forming", "no", "worker:0 has not opened its port of TF_CONFIG", []),
    (run(task(), forming=FORMING), "forming", "no", "waiting 1 min 15 s for worker:1", [*STACKS, "logs"]),
    (run(*(task(n, listening=False, step=4.0) for n in (0, 1))), "training", "unknown", "trains by itself", STACKS),
    (run(task(step=4.0), task(1, pid=None, state="restarting")), "training", "yes", "step 4", []),
    (run(task(), task(1, pid=None, state="waiting")), "starting", "no", "worker:1 is being started", []),
    (run(task(breakpoint="train.py, line 3")), "first step", "no", WAITS, [("tflaunch", "debug", "night", "worker:0")]),
    (run(task(step=4.0), hang=HangStatus("it waits", NOW - 60)), "hanging", "no", "for 1 min: it waits", STACKS),
    (run(GONE), "ending", "no", "its tasks have ended", []),
    (run(GONE, EVALUATOR, state="draining"), "evaluating", "no", "and evaluator:0 still runs", []),
    (run(GONE, state="draining"), "ending", "no", "it has succeeded", []),
    (run(task(), hosts=(SILENT,)), "waiting for hosts", "unknown", "b silent for 12 s", []),
    (run(task(), state="waiting_for_hosts", reason="b was lost"), "waiting for hosts", "no", "b was lost", []),
    (run(state="joining"), "starting", "no", "its hosts are being reached", []),
    (run(state="joining", hosts=(HostStatus("a", "down", "no way"),)), "starting", "no", "a down (no way)", []),
    (run(state="backing_off", last_failure="x failed"), "starting", "no", "x failed", []),
    (run(task(), state="saving"), "saving", "no", "a task was told to end", []),
    (run(task(), state="stopping"), "ending", "no", "its tasks are being stopped", []),
    (run(task(), **LOST), "ending", "unknown", "its supervisor was killed; its tasks live on for 20 s", RESUME),
    (run(GONE, **LOST), "ended", "no", "its supervisor was killed, and its tasks have ended", RESUME),
    (run(task(pid=None, state="failed"), **FAILED), "ended", "no", "worker:0 exited with 3", ["explain", "logs"]),
    (run(GONE, state="succeeded", exit_code=0), "ended", "no", "it has ended with exit code 0", []),
    (run(task(), state="interrupted", exit_code=130, reason="Ctrl-C"), "ending", "no", "Ctrl-C", []),
    (run(GONE, state="stopped", exit_code=143), "ended", "no", "exit code 143", []),
]


@pytest.mark.parametrize(("status", "phase", "trains", "because", "commands"), ROWS)
def test_every_state_has_one_answer(
    status: Status, phase: str, trains: str, because: str, commands: list[str | tuple[str, ...]]
) -> None:
    """A run that trains has no commands; what is proposed looks, or takes over."""
    assert (status.phase, status.trains) == (phase, trains), status.because
    assert because in status.because
    proposed = [command if command in commands else command[1] for command in status.next_commands]
    assert proposed == commands
    harms = {"down", "kill", "prune", "restart"}
    assert not harms & {word for command in status.next_commands for word in command}
    assert assessed(status, NOW, VERBS) == status or status.exit_code is not None


def test_without_features_only_commands_of_the_spine_are_proposed() -> None:
    bare = [assessed(status, NOW) for status, *_ in ROWS]
    assert {command[1] for status in bare for command in status.next_commands} == {"logs", "up"}


def test_runs_of_which_little_is_known() -> None:
    """Those in the queue, those that could not begin, and ended ones in the list of runs."""
    queued = assess_waiting("night", "queued", None, "it waits", VERBS)
    assert (queued.phase, queued.trains, queued.next_commands) == ("queued", "no", (("tflaunch", "queue"),))
    assert assess_waiting("night", "failed", 2, "no such host", VERBS)[:3] == ("ended", "no", "no such host")
    assert assess_end("night", "stopped", 143, "", VERBS)[:3] == ("ended", "no", "it has ended with exit code 143")
    assert [command[1] for command in assess_end("night", "failed", 1, "x", VERBS).next_commands] == ["explain"]
