"""What users read: messages about a running job, its status while it forms, and the summary at its end."""

import re
from typing import Any

import pytest

from support.job_history import HERE, History, mirrored, parameter_server
from support.specs import MACHINE, clustered, planned
from tflaunch.core import policy, time_limits
from tflaunch.core.annotations import StartExplained
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
    TaskNotStarted,
    TaskStarted,
    TimePassed,
)
from tflaunch.core.job_state import Cause, Culprit, Phase
from tflaunch.explain import causes, cluster_formation, summary
from tflaunch.explain.run_status import Status
from tflaunch.explain.status import state_of_run

EPOCH = 1_000_000.0
SERVE = 'end the program of a server with `server.join()`, or set "server": true for its role'


def summary_of(history: History) -> str:
    return summary.summary(history.job, "/logs", lambda task, _: [f"output of {task}"])


def told(history: History) -> Status:
    return history.status(EPOCH)


def starting(cluster: dict[str, int], opened: tuple[str, ...] = (), **fields: object) -> History:
    """Return a job whose tasks run; those in ``opened`` listen."""
    history = History(clustered(cluster, **fields)).start_without_ports()
    return history.happens(*(PortOpened(HERE, task, 0) for task in opened))


def after_a_minute(history: History) -> list[str]:
    """Return the messages when the warning is due, and the hint in the status."""
    history.now = time_limits.next_deadline(history.job) or 0.0
    return [*history.told(TimePassed()), *(forming.hint for forming in [told(history).forming] if forming)]


def test_what_the_tasks_do_is_said_once_they_have_been_looked_at() -> None:
    """In place of what is likely; not of another attempt, nor if the cluster has formed meanwhile."""
    history = starting({"worker": 2})
    after_a_minute(history)
    found = StartExplained(0, "worker:0 still imports tensorflow")
    assert history.told(found) == ["hint: worker:0 still imports tensorflow"]
    shown = told(history).forming
    assert shown.hint == "worker:0 still imports tensorflow"
    assert history.told(found._replace(attempt=1)) == []
    history.happens(PortOpened(HERE, "worker:0", 0), PortOpened(HERE, "worker:1", 0))
    assert history.told(found) == []


def test_the_tasks_that_the_others_wait_for_are_named_after_a_minute() -> None:
    """TensorFlow itself would wait for an hour without output."""
    history = starting({"worker": 3}, ("worker:1",))
    line, hint = after_a_minute(history)
    assert line == "cluster not formed: waiting 1 min for worker:0, worker:2 to listen"
    assert "`tflaunch logs run worker:0`" in hint
    history.now += 5
    history.happens(PortOpened(HERE, "worker:0", 0))
    assert history.told(PortOpened(HERE, "worker:2", 0)) == ["cluster formed after 1 min 05 s"]
    line, hint = after_a_minute(starting({"worker": 2}))
    assert line == "cluster not formed: waiting 1 min for worker:0, worker:1 to listen"
    assert all(words in hint for words in ("may set or drop TF_CONFIG", "sudo", '"strategy": "none"'))
    cluster = {"chief": 1, "worker": 2, "ps": 1}  # its servers run the program of the chief
    line, hint = after_a_minute(starting(cluster, ("chief:0",)))
    assert line == "cluster not formed: waiting 1 min for worker:0, worker:1, ps:0 to listen"
    assert '"roles": {"ps": {"server": true}, "worker": {"server": true}}' in hint
    assert "server" not in after_a_minute(starting(cluster, ("chief:0", "worker:0")))[1].partition("`")[2]


def test_the_use_of_tf_config_is_not_doubted_once_a_cluster_has_formed() -> None:
    """The program is the same in every attempt; it may load a checkpoint, or have nothing left to train."""
    history = mirrored(2, restart={"max": 1, "backoff": [1, 1]})
    history.ends("worker:0", None, 9).ends("worker:1", None, 9).wait()
    history.happens(PortsHeld(HERE, {"worker:0": 30000, "worker:1": 30001}))
    history.happens(*(TaskStarted(HERE, task, 1, 1, 0.0) for task in ("worker:0", "worker:1")))
    _, hint = after_a_minute(history)
    assert "TF_CONFIG" not in hint
    assert "an earlier attempt's cluster had formed; worker:0, worker:1 may still be loading" in hint
    history.ends("worker:0")
    assert not any("TF_CONFIG" in line for line in history.told(TaskExited(HERE, "worker:1", 1, 0, None, 0.0)))


def test_a_cluster_that_had_not_formed_is_in_the_summary() -> None:
    """Also for a run that the user stopped; but not if it had no time to form."""
    history = starting({"worker": 2}, ("worker:0",))
    after_a_minute(history)
    history.happens(Interrupted(2)).ends("worker:0", None, 15).ends("worker:1", None, 15)
    interrupted, missing, hint, logs = summary_of(history).splitlines()
    assert interrupted == "interrupted by Ctrl-C"
    assert missing == "the cluster had not formed: worker:1 never listened"
    assert hint.startswith("hint: ")
    assert logs == "logs: /logs"
    early = starting({"worker": 2}).happens(Interrupted(2)).ends("worker:0", None, 15).ends("worker:1", None, 15)
    assert summary_of(early).splitlines() == ["interrupted by Ctrl-C", "logs: /logs"]


def ends_well(opened: int, seconds: float, preload: str = "", why: str = "") -> list[str]:
    """Return the messages at the end of two mirrored workers; the first ``opened`` of them had opened their ports."""
    history = History(clustered({"worker": 2})._replace(trains_alone=why)).happens(HostJoined(HERE))
    history.happens(PortsHeld(HERE, {"worker:0": 10, "worker:1": 11}))
    for number in range(2):
        history.happens(TaskStarted(HERE, f"worker:{number}", 0, 1, 0.0, preload=preload))
    for number in range(opened):
        history.happens(PortOpened(HERE, f"worker:{number}", 0))
    history.now += seconds
    history.happens(TaskExited(HERE, "worker:0", 0, 0, None, 0.0))
    return history.told(TaskExited(HERE, "worker:1", 0, 0, None, 0.0))


def test_trainings_that_were_each_alone_are_not_passed_over() -> None:
    """All exited with 0 without opening a port: the program lost TF_CONFIG.

    What is too short for a training is not suspected, as the first example of the README, unless it had nothing to
    import.
    """
    warning, hint = ends_well(0, 10.0)
    assert warning.startswith("warning: worker:0, worker:1 never opened their ports of TF_CONFIG: unless")
    assert "TF_CONFIG" in hint
    assert ends_well(1, 10.0) == ends_well(2, 10.0) == []
    warning, hint = ends_well(0, 10.0, why="train.py:6: no strategy")
    assert warning.endswith(" never opened their ports of TF_CONFIG: each has trained alone")
    assert hint == "hint: train.py:6: no strategy"
    assert ends_well(2, 10.0, why="train.py:6: no strategy") == []
    for preload in ("", "json", "no: tensorflow, it starts threads"):
        assert ends_well(0, 1.0, preload) == []
    assert "never opened their ports" in ends_well(0, 1.0, "numpy,tensorflow")[0]


def test_a_server_that_ends_cleanly_too_soon_is_reported() -> None:
    """The chief would wait for it without output."""
    history = parameter_server()
    for task in ("worker:0", "ps:0"):
        (line,) = history.told(TaskExited(HERE, task, 0, 0, None, 0.0))
        assert line == f"{task} ended with code 0, though the job still needs it; {SERVE}"
    (sentence,) = cluster_formation.servers_ended(history.job)
    assert sentence == f"worker:0, ps:0 ended with code 0, though the job still needs them; {SERVE}"
    history.happens(StopRequested(0.0), TaskExited(HERE, "worker:1", 0, 0, None, 0.0, was_told=True))
    history.happens(TaskExited(HERE, "chief:0", 0, None, 15, 0.0, was_told=True))
    assert f"worker:0, ps:0 ended with code 0, though the job still needs them; {SERVE}\n" in summary_of(history)
    history = parameter_server().happens(TaskExited(HERE, "chief:0", 0, 0, None, 0.0))
    assert not history.told(TaskExited(HERE, "worker:0", 0, 0, None, 0.0)), "it is stopped then anyway"
    assert cluster_formation.servers_ended(history.job) == []


def test_a_restart_names_culprit_victims_and_wait() -> None:
    """First what happened, then, when all tasks are gone, what follows: only then is the culprit certain."""
    history = mirrored(2)
    (line,) = history.told(TaskExited(HERE, "worker:1", 0, None, 9, 0.0))
    assert line == "worker:1 failed; ending worker:0"
    history.happens(TaskGone(HERE, "worker:1", 0), TaskExited(HERE, "worker:0", 0, None, 15, 0.0, was_told=True))
    (line,) = history.told(TaskGone(HERE, "worker:0", 0))
    assert re.fullmatch(r"worker:1 was killed by SIGKILL; restart 1 of 3 in (0\.\d+|1) s", line)
    history = mirrored(2, restart={"backoff": [0, 0]}).ends("worker:1", None, 9)
    history.happens(TaskExited(HERE, "worker:0", 0, None, 15, 0.0, was_told=True))
    assert history.told(TaskGone(HERE, "worker:0", 0)) == ["worker:1 was killed by SIGKILL; restart 1 of 3 follows"]


def test_a_summary_names_the_culprit_with_its_last_words_and_the_victims() -> None:
    """Not what TensorFlow writes at each start, unless there is nothing else; none can move the cursor."""
    start = "I0000 00:00:1795855631.293051   20333 port.cc:153] oneDNN custom operations are on."
    history = mirrored(2, restart={"max": 0}).ends("worker:1", 7).ends("worker:0", None, 9)
    assert summary_of(history).splitlines() == [
        "worker:1 exited with code 7",
        "last lines of worker:1:",
        "    output of worker:1",
        "also stopped: worker:0",
        "not restarted: restart.max is 0",
        "logs: /logs",
        "next: tflaunch logs run worker:1",
    ]
    for own in (["reads shards", "bad input"], []):
        lines = summary.summary(history.job, "/logs", lambda *_, own=own: [*own, start]).splitlines()
        assert lines[2 : lines.index("also stopped: worker:0")] == [f"    {line}" for line in own or [start]]
    log = ["Traceback (most recent call last):", '  File "a.py", line 1, in f', "ValueError: \x1b]0;x\x07 \u202e"]
    text = summary.summary(history.job, "/logs", lambda *_: log)
    assert "(ValueError: \\x1b]0;x\\x07 \\u202e, a.py, line 1)" in text
    assert all(line.isprintable() for line in text.splitlines())


TRACEBACK = """Traceback (most recent call last):
  File "/home/ann/train.py", line 90, in <module>
    main()
  File "/home/ann/train.py", line 41, in main
    model.fit(data)
  File "/venv/lib/python3.11/site-packages/keras/a.py", line 1, in fit
    step()
  File "/venv/lib/python3.11/site-packages/keras/d.py", line 4, in check
    raise ValueError(text)
ValueError: bad shape
want (1, 2)
have (3, 4)""".splitlines()


def test_each_restart_names_the_exception_that_caused_it() -> None:
    """In one line, with the location in the program's own code."""
    history = mirrored(2).ends("worker:0", 1)
    history.happens(TaskExited(HERE, "worker:1", 0, None, 9, 0.0, was_told=True))
    (line,) = history.told(TaskGone(HERE, "worker:1", 0), "Epoch 1/3", *TRACEBACK)
    assert line.startswith("worker:0 exited with code 1 (ValueError: bad shape, train.py, line 41); restart 1 of 3 in ")


def test_a_clipped_traceback_keeps_the_frame_of_the_users_own_code() -> None:
    """If the output is already on the screen, it is not shown again."""
    history = mirrored(2, restart={"max": 0}).ends("worker:1", 7).ends("worker:0", None, 9)
    assert summary.summary(history.job, "/logs", lambda *_: TRACEBACK).splitlines()[1:-4] == [
        "traceback of worker:1:",
        "    Traceback (most recent call last):",
        "      …",
        '      File "/home/ann/train.py", line 41, in main',
        "        model.fit(data)",
        "      …",
        "    ValueError: bad shape",
        "    want (1, 2)",
        "    have (3, 4)",
    ]
    shown = summary.summary(history.job, "/logs", lambda *_: TRACEBACK, is_shown=True)
    assert shown.splitlines()[0] == "worker:1 exited with code 7 (ValueError: bad shape, train.py, line 41)"
    assert "traceback" not in shown


def killed(history: History, task: str, after: float) -> History:
    """Let KILL end a task, some seconds from now."""
    return history.happens(TaskExited(HERE, task, 0, None, 9, history.now + after, was_told=True))


def test_a_kill_after_the_grace_is_said() -> None:
    """For all tasks together; but not for survivors of a failure, which get no grace, nor after a second Ctrl-C."""
    history = mirrored(2)
    (line,) = history.told(Interrupted(2))
    assert line.startswith("ending worker:0, worker:1: sent TERM, waiting up to 10 s for them to save (TensorFlow")
    assert line.endswith("; press Ctrl-C again to kill")
    killed(history, "worker:0", after=10).happens(TaskGone(HERE, "worker:0", 0))
    killed(history, "worker:1", after=10)
    assert history.told(TaskGone(HERE, "worker:1", 0)) == [
        "worker:0 and worker:1 were killed: still running 10 s after TERM; "
        "raise timeouts.grace if a checkpoint needs longer"
    ]
    urgent = killed(mirrored(1).happens(Interrupted(2), Interrupted(2)), "worker:0", after=0.1)
    assert urgent.told(TaskGone(HERE, "worker:0", 0)) == []
    by_another = killed(mirrored(1).happens(Interrupted(2)), "worker:0", after=5)
    assert by_another.told(TaskGone(HERE, "worker:0", 0)) == [], "it may have killed all of them"
    failed = killed(mirrored(2, restart={"max": 0}).ends("worker:0", 7), "worker:1", after=0.1)
    assert failed.told(TaskGone(HERE, "worker:1", 0)) == []


def test_what_was_sent_and_the_earlier_of_two_stops_are_named() -> None:
    """A later request gives a task no more time; TensorFlow does not catch INT."""
    history = mirrored(1, stop_signal="SIGINT")
    (line,) = history.told(Interrupted(10))
    assert line.startswith("got SIGUSR1; ending worker:0: sent INT, waiting up to 10 s for them to save; press")
    history.now += 4
    history.happens(StopRequested(60.0))
    killed(history, "worker:0", after=6)
    (line,) = history.told(TaskGone(HERE, "worker:0", 0))
    assert line.startswith("worker:0 was killed: still running 10 s after INT")


def test_a_worker_that_outlives_the_others_or_returns_is_told() -> None:
    """Once; the parameter_server job continued without it; its backoff is rounded."""
    history = mirrored(2).ends("worker:0")
    assert time_limits.next_deadline(history.job) == history.now + 30
    history.now += 30
    (line,) = history.told(TimePassed())
    assert line == "worker:1 still runs 30 s after worker:0 finished; timeouts.finish limits that"
    assert history.told(TimePassed()) == []
    history = parameter_server()
    (line,) = history.told(TaskExited(HERE, "worker:1", 0, None, 9, 0.0))
    assert re.fullmatch(r"worker:1 was killed by SIGKILL; it restarts alone in (0\.\d\d?|1) s", line)
    history.happens(TaskGone(HERE, "worker:1", 0)).wait()
    history.happens(TaskStarted(HERE, "worker:1", 1, 2, 0.0))
    assert history.told(PortOpened(HERE, "worker:1", 1)) == ["worker:1 is back: it listens again (attempt 1)"]


def test_a_job_that_is_done_says_how_long_it_took_and_how_far_it_came() -> None:
    """By the first task that told it; a name from a program shows nothing that a terminal would interpret."""
    history = mirrored(2).ends("worker:0")
    history.now += 75
    metrics = {"loss": 0.01234567, "a\x1b[2Jb": 2.0}
    (line,) = summary_of(history.ends("worker:1", step=300, epoch=3, metrics=metrics)).splitlines()
    assert line == "done: 2 tasks in 1 min 15 s; step 300, epoch 3, loss 0.01235, a\\x1b[2Jb 2"


def test_a_command_that_is_not_found_has_a_host_and_a_remedy() -> None:
    """It may exist on all other hosts; a program without its interpreter is not something to install."""
    history = History(clustered({"worker": 1})).happens(HostJoined(HERE), PortsHeld(HERE, {"worker:0": 1}))
    history.happens(TaskNotStarted(HERE, "worker:0", 0, 127, "command not found: 'train.py'"))
    sentence, hint = summary_of(history.happens(TaskGone(HERE, "worker:0", 0))).splitlines()
    assert sentence == "worker:0 did not start on localhost: command not found: 'train.py'"
    assert hint == "hint: write its interpreter before it, for example: python train.py"


def test_a_failure_names_the_host_unless_it_is_this_machine() -> None:
    """Which of five machines lacks a module matters as much as the task."""
    here = MACHINE._replace(local_names=frozenset({"h1"}))
    plan = planned({"cluster": {"worker": ["h1:1", "h2:2"]}, "command": ["python", "train.py"]}, here)
    for host, name in [("h1", "worker:0"), ("h2", "worker:1 on h2")]:
        culprit = Culprit(Cause.TASK, name.partition(" ")[0], 0, host=host, code=1)
        assert causes.describe(culprit, plan) == f"{name} exited with code 1"


@pytest.mark.parametrize(
    ("code", "signal", "failure", "culprit"),
    [
        (1, None, "UnavailableError at train.py:9", "worker:1"),
        (1, None, "", "worker:1"),
        (None, 6, "", "worker:1"),
        (1, None, "KeyError at train.py:9", "worker:0"),
        (7, None, "", "worker:0"),
        (None, 9, "", "worker:0"),
    ],
    ids=["exception about peers", "JAX", "abort", "own exception", "own code", "killed"],
)
@pytest.mark.parametrize("ends_with", [(None, 9), (0, None)], ids=["killed", "saved"])
def test_a_suspended_task_is_to_blame_for_a_peer_that_got_no_answer(
    code: int | None, signal: int | None, failure: str, culprit: str, ends_with: tuple[int | None, int | None]
) -> None:
    """However it ends when it is continued; a peer with a failure of its own stays the culprit."""
    history = mirrored(2, restart={"max": 0})
    state = "state T, pid 7: python train.py"
    history.ends("worker:0", code, signal, failure=failure).ends("worker:1", *ends_with, was_told=True, suspended=state)
    assert history.culprit.name == culprit
    assert history.job.exit_code == (code or 128 + (signal or 0))
    first, second, hint, *_ = summary_of(history).splitlines()
    if culprit == "worker:1":
        assert first == f"worker:1 was stopped by SIGSTOP or a debugger ({state})"
        assert second == "it did not answer its peers, and worker:0 failed"
        assert "`tflaunch kill -s CONT worker:1` continues it" in hint


# ---- a cluster that does not form, in `ps --json`; and which failures count as start-up failures


def states(history: History) -> list[tuple[str, bool | None]]:
    return [(task.state, task.listening) for task in told(history).tasks]


def test_who_does_not_listen_is_in_the_status_after_a_minute() -> None:
    history = starting({"worker": 2}, ("worker:0",))
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
    alone = starting({"worker": 1})
    assert after_a_minute(alone) == []
    assert alone.job.formation.is_past_start
    alone.now += 3600
    assert states(alone.happens(TimePassed())) == [("running", False)]
    apart = History(clustered({"worker": 2}, strategy="none")).start()
    assert states(apart) == [("running", None), ("running", None)]
    assert time_limits.next_deadline(starting({"worker": 2}, strategy="none").job) is None


def test_a_task_and_a_run_have_the_state_that_tells_most() -> None:
    """The culprit has failed, although it, too, was told to end its processes; of a silent host nothing is known."""
    silent = starting({"worker": 2})
    silent.now += policy.WARN_AFTER
    silent.happens(TimePassed(), LinkLost(HERE, "cut"))
    assert [state for state, _ in states(silent)] == ["disconnected"] * 2
    history = mirrored(2, restart={"max": 0})
    history.happens(TaskExited(HERE, "worker:0", 0, 7, None, 0.0))
    assert [state for state, _ in states(history)] == ["failed", "stopping"]
    history.happens(TaskGone(HERE, "worker:0", 0)).ends("worker:1", None, 9)
    assert [state for state, _ in states(history)] == ["failed", "stopped"]
    assert told(history).state == "failed"
    lost = mirrored(1, restart={"max": 0}).happens(HostLost(HERE, "no power"))
    assert [state for state, _ in states(lost)] == ["lost"]
    running = mirrored(1)
    assert told(running).state == "running"
    for event, state in ((Interrupted(2), "interrupted"), (StopRequested(1.0), "stopped")):
        assert told(mirrored(1).happens(event).ends("worker:0", None, 15)).state == state
    assert told(running.ends("worker:0")).state == "succeeded"
    assert state_of_run(running.job, 130) == "interrupted"


def test_the_cause_of_a_restart_is_kept() -> None:
    shown = told(mirrored(1).ends("worker:0", 1, failure="ValueError at train.py:41").wait().start())
    assert shown.culprit is None
    assert shown.last_failure == "worker:0 exited with code 1 (ValueError at train.py:41)"
    assert (shown.restarts, shown.restart, shown.max_restarts) == (1, "restart 1 of 3", 3)


def test_a_cluster_stays_formed_while_workers_return_one_after_the_other() -> None:
    history = parameter_server(restart={"backoff": [1, 1]})
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
    history = starting({"worker": 2}, ("worker:1",)).ends("worker:0", code).ends("worker:1", None, 9)
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
    history = starting({"worker": 2}, ("worker:0", "worker:1") * is_formed)
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


@pytest.mark.parametrize(("progress", "is_retried"), [({"step": 3}, True), ({"epoch": 1}, True), ({}, False)])
def test_a_task_that_has_begun_to_train_does_not_fail_at_start_up(progress: dict[str, Any], is_retried: bool) -> None:
    """Nor does any other: the cluster works, so the failure is not certain to come again.

    Even if the port of another task has not been seen yet; a checkpoint may be that of an earlier run.
    """
    of_both = [starting({"worker": 2}, ("worker:1",)) for _ in range(2)]
    of_both[0].ends("worker:1", 1, checkpoint=7, **progress).ends("worker:0", None, 9)
    of_both[1].ends("worker:1", 1).ends("worker:0", 1, **progress)
    assert [history.job.phase is Phase.BACKING_OFF for history in of_both] == [is_retried] * 2
    alone = starting({"worker": 1})
    alone.now += 3600  # it never opens its port, as it may use a resolver of its own
    assert alone.happens(TimePassed()).ends("worker:0", 1).job.phase is Phase.BACKING_OFF
