"""What people read: the news of a running job, and the summary at its end."""

from __future__ import annotations

import re

import pytest

from history import HERE, History, mirrored, parameter_server
from specs import clustered
from tflaunch.job import diagnosis, supervisor
from tflaunch.job.events import (
    Event,
    HostJoined,
    Interrupted,
    PortOpened,
    PortsHeld,
    TaskExited,
    TaskGone,
    TaskStarted,
    TimePassed,
)
from tflaunch.job.news import Logs, news

pytestmark = pytest.mark.unit


def news_of(history: History, event: Event) -> list[str]:
    """Return the news of one event."""
    before = history.job
    return news(before, event, history.happens(event).job, history.now, Logs("/logs", lambda *_: []))


def summary_of(history: History) -> str:
    """Return the summary, with logs that hold one line per task."""
    return diagnosis.summary(history.job, "/logs", lambda task, _: [f"words of {task}"])


def starting(cluster: dict[str, int], opened: tuple[str, ...] = (), **fields: object) -> History:
    """Return a job whose tasks run, of which those that are ``opened`` listen."""
    history = History(clustered(cluster, **fields)).happens(HostJoined(HERE))
    history.happens(PortsHeld(HERE, {task.task: 10 + number for number, task in enumerate(history.job.plan.tasks)}))
    for task in history.job.plan.tasks:
        history.happens(TaskStarted(HERE, task.task, 0, 1, 0.0))
    return history.happens(*(PortOpened(HERE, task, 0) for task in opened))


def after_a_minute(history: History) -> list[str]:
    """Return the news when the time has come to warn."""
    history.now = supervisor.next_deadline(history.job) or 0.0
    return news_of(history, TimePassed())


def test_the_tasks_that_the_others_wait_for_are_named_after_a_minute() -> None:
    """TensorFlow itself would wait for an hour without a word."""
    history = starting({"worker": 3}, ("worker:1",))
    line, hint = after_a_minute(history)
    assert line == "cluster not formed: waiting 60 s for worker:0, worker:2 to listen"
    assert "`tflaunch logs run worker:0`" in hint
    history.now += 5
    history.happens(PortOpened(HERE, "worker:0", 0))
    assert news_of(history, PortOpened(HERE, "worker:2", 0)) == ["cluster formed after 65 s"]


def test_nobody_listens_if_tf_config_is_overwritten() -> None:
    """What the program does with TF_CONFIG is the likely cause, and it is said while the job runs."""
    line, hint = after_a_minute(starting({"worker": 2}))
    assert line == "cluster not formed: waiting 60 s for worker:0, worker:1 to listen"
    assert "may set or drop TF_CONFIG" in hint
    assert "sudo" in hint
    assert '"strategy": "none"' in hint


def test_servers_that_run_the_program_of_the_chief_are_recognized() -> None:
    """The field that makes tflaunch run TensorFlow's standard server is named."""
    cluster = {"chief": 1, "worker": 2, "ps": 1}
    line, hint = after_a_minute(starting(cluster, ("chief:0",)))
    assert line == "cluster not formed: waiting 60 s for worker:0, worker:1, ps:0 to listen"
    assert '"roles": {"ps": {"server": true}, "worker": {"server": true}}' in hint
    assert "server" not in after_a_minute(starting(cluster, ("chief:0", "worker:0")))[1].partition("`")[2]


def test_one_task_alone_is_not_waited_for() -> None:
    """Nor is anybody without a cluster."""
    history = starting({"worker": 1})
    assert after_a_minute(history) == []
    assert history.job.is_past_start
    assert supervisor.next_deadline(starting({"worker": 2}, strategy="none").job) is None


def test_a_cluster_that_had_not_formed_is_in_the_summary() -> None:
    """Also of a run that the user has stopped; but not if there was no time to form it."""
    history = starting({"worker": 2}, ("worker:0",))
    after_a_minute(history)
    history.happens(Interrupted(2)).ends("worker:0", None, 15).ends("worker:1", None, 15)
    interrupted, missing, hint, logs = summary_of(history).splitlines()
    assert interrupted == "interrupted by SIGINT"
    assert missing == "the cluster had not formed: worker:1 never listened"
    assert hint.startswith("hint: ")
    assert logs == "logs: /logs"
    early = starting({"worker": 2}).happens(Interrupted(2)).ends("worker:0", None, 15).ends("worker:1", None, 15)
    assert summary_of(early).splitlines() == ["interrupted by SIGINT", "logs: /logs"]


def test_the_limit_of_a_start_names_the_remedy() -> None:
    """`timeouts.start` ends the job before anybody was warned."""
    history = starting({"worker": 2}, timeouts={"start": 5})
    history.wait().ends("worker:0", None, 15).ends("worker:1", None, 15)
    reason, hint, _ = summary_of(history).splitlines()
    assert reason == "stopped: cluster not formed within timeouts.start (5 s): worker:0, worker:1 did not listen"
    assert "TF_CONFIG" in hint


def ends_well(opened: int, seconds: float) -> list[str]:
    """Return the news of the end of two mirrored workers, the first so many of which had opened their ports."""
    history = History(clustered({"worker": 2})).happens(HostJoined(HERE))
    history.happens(PortsHeld(HERE, {"worker:0": 10, "worker:1": 11}))
    for number in range(2):
        history.happens(TaskStarted(HERE, f"worker:{number}", 0, 1, 0.0))
    for number in range(opened):
        history.happens(PortOpened(HERE, f"worker:{number}", 0))
    history.now += seconds
    history.happens(TaskExited(HERE, "worker:0", 0, 0, None, 0.0))
    return news_of(history, TaskExited(HERE, "worker:1", 0, 0, None, 0.0))


def test_trainings_that_were_each_alone_are_not_passed_over() -> None:
    """All ended with 0, and no port was ever opened: TF_CONFIG got lost on the way."""
    warning, hint = ends_well(0, 10.0)
    assert warning.startswith("warning: worker:0, worker:1 never opened their ports of TF_CONFIG: unless")
    assert "TF_CONFIG" in hint
    assert ends_well(1, 10.0) == ends_well(2, 10.0) == []


def test_what_is_too_short_for_a_training_is_not_suspected() -> None:
    """The first example of the README prints and ends."""
    assert ends_well(0, 1.0) == []


def test_a_server_that_ends_cleanly_too_soon_is_reported() -> None:
    """The chief would wait for it without a word."""
    (line,) = news_of(parameter_server(), TaskExited(HERE, "worker:0", 0, 0, None, 0.0))
    assert line == "worker:0 ended with code 0, though the job still needs it"


def test_a_restart_names_culprit_victims_and_wait() -> None:
    """At once what happened, and what follows when all are gone: only then is the culprit known for sure."""
    history = mirrored(2)
    (line,) = news_of(history, TaskExited(HERE, "worker:1", 0, None, 9, 0.0))
    assert line == "worker:1 was killed by SIGKILL; ending worker:0"
    history.happens(TaskGone(HERE, "worker:1", 0), TaskExited(HERE, "worker:0", 0, None, 15, 0.0, was_told=True))
    (line,) = news_of(history, TaskGone(HERE, "worker:0", 0))
    assert re.fullmatch(r"restart 1 in (0\.\d+|1) s", line)


def test_a_summary_names_the_culprit_with_its_words_and_the_victims() -> None:
    """And where to read on."""
    history = mirrored(2, restart={"max": 0}).ends("worker:1", 7).ends("worker:0", None, 9)
    assert summary_of(history).splitlines() == [
        "worker:1 exited with code 7",
        "last lines of worker:1:",
        "    words of worker:1",
        "ended because of it: worker:0",
        "not restarted: restart.max is 0",
        "logs: /logs",
    ]


@pytest.mark.parametrize(("number", "name"), [(9, "SIGKILL"), (15, "SIGTERM"), (99, "signal 99")])
def test_signals_have_names(number: int, name: str) -> None:
    """As far as the system knows one."""
    assert diagnosis.signal_name(number) == name
