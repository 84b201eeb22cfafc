"""Drills: which faults a user may request, and how the job's reaction is reported."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from support.job_history import HERE, History, mirrored, parameter_server
from support.specs import clustered
from support.ungreeted_run import UngreetedRun, signals_of, supervision
from tflaunch.core.events import PortOpened, TaskStarted
from tflaunch.errors import TflaunchError
from tflaunch.features.drills import drill
from tflaunch.features.drills.drill import Fault, FaultInjector, FaultOutcome

pytestmark = pytest.mark.unit

FAR = clustered({"worker": ["a:1", "b:1"], "evaluator": ["b:2"]})


def test_strikes_are_read_in_the_order_of_their_time() -> None:
    faults = drill.parse_drill("kill worker:1 after 1m; stop evaluator:0 for 10s; cut host=b after 2 for 5s;", FAR)
    assert faults == (
        Fault("stop", "evaluator:0", "b", 0, 10),
        Fault("cut", None, "b", 2, 5),
        Fault("kill", "worker:1", "b", 60, None),
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "it says nothing"),
        ("kill", "it must begin with"),
        ("kill worker:1 after", "it must begin with"),
        ("kill worker:1 after 3s after 4s", "after the target only"),
        ("kill worker:1 for 3s", "stop and cut need"),
        ("stop worker:1", "stop and cut need"),
        ("cut host=c for 3s", "the hosts are host=a, host=b"),
    ],
)
def test_what_cannot_be_done_is_refused_with_an_example(text: str, reason: str) -> None:
    with pytest.raises(TflaunchError, match="write for example") as error:
        drill.parse_drill(text, FAR)
    assert reason in str(error.value)
    assert error.value.exit_code == 2
    with pytest.raises(TflaunchError, match="lease"):
        drill.parse_drill("cut host=localhost for 3s", clustered({"worker": 2}))


def struck(history: History, verb: str = "kill") -> FaultOutcome:
    return FaultOutcome(Fault(verb, "worker:0", HERE, 5, None)).injected(history.job, history.now)


def said(outcome: FaultOutcome, exit_code: int = 0) -> str:
    (line,) = drill.report_faults([outcome], exit_code)
    return line.rpartition(": ")[2]


def test_a_gang_that_runs_again_has_recovered() -> None:
    history = mirrored(restart={"max": 1, "backoff": [1, 1]})
    outcome = drill.follow_fault(struck(history), history.job, history.now)
    assert said(outcome) == "no task ended because of it"
    history.ends("worker:0", None, 9).ends("worker:1", None, 9)
    outcome = drill.follow_fault(outcome, history.job, history.now)
    assert said(outcome) == "the job ended well without a restart"
    assert said(outcome, 137) == "the job did not recover"
    history.wait()
    history.now += 2
    history.start()
    outcome = drill.follow_fault(outcome, history.job, history.now)
    assert said(outcome) == f"all tasks ran again after {history.now - 1000:.1f} s"
    assert said(outcome, 1).endswith(", but the job failed")
    history = mirrored()
    outcome = drill.follow_fault(struck(history, "stop"), history.job, history.now).settled()
    history.ends("worker:0", None, 9)  # because of a strike that follows
    assert said(drill.follow_fault(outcome, history.job, history.now)) == "no task ended because of it"


def test_a_task_that_starts_alone_is_noticed() -> None:
    history = parameter_server(restart={"max": 1, "backoff": [1, 1]})
    outcome = struck(history)
    history.ends("worker:0", None, 9)
    outcome = drill.follow_fault(outcome, history.job, history.now)
    assert outcome.was_noticed
    history.wait().happens(TaskStarted(HERE, "worker:0", 1, 1, 0.0), PortOpened(HERE, "worker:0", 1))
    assert drill.follow_fault(outcome, history.job, history.now).recovered_at == history.now


def test_a_drill_waits_for_the_greeting(tmp_path: Path) -> None:
    """With a fault, and with its end, which the task would miss for good."""
    run, said = UngreetedRun(tmp_path), list[str]()
    extras = {"drill": "stop worker:0 after 0s for 3s"}
    sessions = {HERE: run.session}
    about = supervision(run.history.job, tmp_path, run.mailbox, sessions, said.append, extras=extras)
    injector = FaultInjector(about)
    injector.watch(run.history.job, run.mailbox.now())
    assert (signals_of(run.agent), said) == ([], [])
    run.greet()
    injector.watch(run.history.job, run.mailbox.now())
    assert (signals_of(run.agent), said) == ([signal.SIGSTOP], ["drill: stop worker:0 after 0 s for 3 s"])
    run.session.cut(0)
    run.mailbox.time += 3
    assert [message["kind"] for message in run.later_agent.hears()] == ["hello"]
    run.greet(run.later_agent)
    injector.watch(run.history.job, run.mailbox.now())
    assert signals_of(run.later_agent) == [signal.SIGCONT]
    run.close()
