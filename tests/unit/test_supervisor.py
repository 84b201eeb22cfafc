"""The supervisor's decisions for sequences of events."""

from collections.abc import Callable
from typing import Any

import pytest

from support.job_history import HERE, History, Willing, mirrored, parameter_server
from support.specs import clustered
from tflaunch.core import policy, time_limits
from tflaunch.core.actions import AbandonHost, HoldPorts, ProbePeers, StartTask, StopTask
from tflaunch.core.annotations import HangExplained, HangNoticed
from tflaunch.core.events import (
    BreakpointLeft,
    BreakpointReached,
    Event,
    HostJoined,
    HostLeaving,
    HostLost,
    Interrupted,
    JobHung,
    LinkLost,
    LinkRestored,
    NamesResolved,
    PeersProbed,
    PortOpened,
    PortsHeld,
    PortsRefused,
    RestartRequested,
    StopRequested,
    TaskExited,
    TaskGone,
    TaskLingers,
    TaskNotStarted,
    TaskStarted,
    TimePassed,
)
from tflaunch.core.job_state import Phase
from tflaunch.explain import summary

HELD, GONE = PortsHeld(HERE, {"worker:0": 1}), TaskGone(HERE, "worker:0", 0)


def prepared_here(*events: Event) -> History:
    """Return a job whose host has joined, after these events."""
    return History(clustered({"worker": 1})).happens(HostJoined(HERE), *events)


ENDS: list[tuple[Callable[[], History], Phase, int | None]] = [
    # a mirrored job is done when all tasks are; success while others save is success
    (lambda: mirrored().ends("worker:0"), Phase.RUNNING, None),
    (lambda: mirrored().ends("worker:0").ends("worker:1"), Phase.ENDED, 0),
    (lambda: mirrored(success="chief").ends("worker:1", 42).ends("worker:0"), Phase.ENDED, 0),
    # an ImportError before the cluster formed would recur; after that, the same code is retried
    (lambda: History(clustered({"worker": 1})).start_without_ports().ends("worker:0", 1), Phase.ENDED, 1),
    (lambda: mirrored().ends("worker:0", 1).ends("worker:1", None, 9), Phase.BACKING_OFF, None),
    # nothing has started
    (lambda: prepared_here(PortsRefused(HERE, {"worker:0": "port 2222 is in use by pid 1"})), Phase.ENDED, 3),
    (lambda: prepared_here(HELD, TaskNotStarted(HERE, "worker:0", 0, 127, "not found"), GONE), Phase.ENDED, 127),
    (lambda: mirrored(restart={"max": 0}).happens(HostLost(HERE, "killed")), Phase.ENDED, 125),
    # a program's code is passed through, except for the two that tflaunch reserves
    (lambda: mirrored(1, restart={"max": 0}).ends("worker:0", 200), Phase.ENDED, 200),
    (lambda: mirrored(1, restart={"max": 0}).ends("worker:0", 124), Phase.ENDED, 1),
    (lambda: mirrored(1, restart={"max": 0}).ends("worker:0", 125), Phase.ENDED, 1),
    (lambda: mirrored(1, restart={"max": 0}).ends("worker:0", None, 9), Phase.ENDED, 137),
]


@pytest.mark.parametrize(("play", "phase", "exit_code"), ENDS)
def test_how_a_job_ends(play: Callable[[], History], phase: Phase, exit_code: int | None) -> None:
    job = play().job
    assert (job.phase, job.exit_code) == (phase, exit_code)


def test_the_success_of_a_training_settles_before_it_counts() -> None:
    """Whoever ends its host may have told the tasks first; what lived for moments only had nothing to save."""
    history = mirrored()
    history.now += policy.SETTLES_WITHIN
    history.ends("worker:0").ends("worker:1")
    assert history.job.phase is Phase.DRAINING
    assert (history.wait().job.phase, history.job.exit_code) == (Phase.ENDED, 0)


def test_tasks_that_exit_with_0_while_a_signal_is_explained_are_not_done() -> None:
    """A scheduler ends them together with tflaunch, and is asked why; without an answer, the exits count."""
    told = mirrored().happens(Interrupted(15, is_announced=True)).ends("worker:0").ends("worker:1")
    assert told.job.phase is Phase.DRAINING
    silent = told.job
    told.happens(Interrupted(15, "the job was preempted"))
    assert (told.job.phase, told.job.exit_code) == (Phase.ENDED, 143)
    told.job = silent
    assert (told.wait().job.phase, told.job.exit_code) == (Phase.ENDED, 0)


def test_the_evaluator_gets_time_after_success() -> None:
    """It may finish its last checkpoint within a time limit."""
    history = History(clustered({"worker": 1, "evaluator": 1}, timeouts={"finish": 30})).start()
    history.ends("worker:0")
    assert (history.job.phase, history.stopped()) == (Phase.DRAINING, [])
    history.wait()
    assert history.stopped() == ["evaluator:0"]
    assert history.ends("evaluator:0", None, 15).job.exit_code == 0


def test_the_first_failure_is_the_culprit_and_its_code_the_jobs() -> None:
    """How the other tasks end afterwards does not count."""
    history = mirrored(3, restart={"max": 0}).happens(TaskExited(HERE, "worker:1", 0, 7, None, 0.0))
    assert set(history.stopped()) == {"worker:0", "worker:1", "worker:2"}
    graces = [action.grace for action in history.actions if isinstance(action, StopTask)]
    assert max(graces) <= 0.25  # they ignore TERM, and cannot be saved
    history.ends("worker:0", 1).ends("worker:2", None, 9).happens(TaskGone(HERE, "worker:1", 0))
    assert (history.job.phase, history.job.exit_code) == (Phase.ENDED, 7)
    assert history.culprit.name == "worker:1"


def test_a_gang_restarts_on_new_ports_after_its_backoff() -> None:
    history = mirrored(restart={"max": 1, "backoff": ["5s", "1m"]}).ends("worker:0", None, 9).ends("worker:1", None, 9)
    assert history.job.phase is Phase.BACKING_OFF
    began = history.now
    history.wait()
    assert 3.75 <= history.now - began <= 5
    assert history.actions == [HoldPorts(HERE, {"worker:0": 0, "worker:1": 0})]
    history.start()
    assert {task.attempt for task in history.job.tasks.values()} == {1}
    history.ends("worker:0").ends("worker:1")
    assert history.job.exit_code == 0


def test_plain_processes_are_retried_whatever_their_code() -> None:
    """Without a strategy no cluster can form, and none waits for another that listens on its port."""
    history = History(clustered({"worker": 2}, strategy="none")).start_without_ports()
    history.happens(PortOpened(HERE, "worker:0", 0))
    assert time_limits.next_deadline(history.job) is None
    assert history.ends("worker:0", 3).ends("worker:1", None, 15).job.phase is Phase.BACKING_OFF


@pytest.mark.parametrize("end", [(0, None), (None, 15)])
def test_a_task_that_no_other_talks_to_is_restarted_alone_if_a_user_asks(end: tuple[int | None, int | None]) -> None:
    """Also if it exits with 0 when stopped; a failure still restarts all."""
    history = History(clustered({"worker": 2}, strategy="none")).start().happens(RestartRequested("worker:1"))
    assert history.stopped() == ["worker:1"]
    history.ends("worker:1", *end)
    assert (history.job.tasks["worker:1"].attempt, history.job.attempt, history.job.phase) == (1, 0, Phase.RUNNING)
    history.happens(TaskStarted(HERE, "worker:1", 1, 2, 0.0)).ends("worker:0", 3)
    assert history.job.phase is not Phase.RUNNING


def test_a_lost_ps_worker_restarts_alone_at_its_address() -> None:
    """The chief waits for it and accepts it again; no other task is disturbed."""
    history = parameter_server(restart={"max": 1, "backoff": [1, 1]}).ends("worker:1", None, 9)
    assert (history.job.phase, history.stopped()) == (Phase.RUNNING, [])
    history.wait()
    assert history.actions == [StartTask(HERE, "worker:1", 1)]
    assert history.job.tasks["worker:0"].attempt == 0
    history.happens(TaskStarted(HERE, "worker:1", 1, 1, 0.0)).ends("worker:1", None, 9)
    assert history.job.exit_code == 137, "its own budget is spent"


@pytest.mark.parametrize("task", ["ps:0", "chief:0"])
def test_a_lost_ps_or_chief_takes_everyone_along(task: str) -> None:
    """The variables or the coordinator are lost, so all tasks restart."""
    history = parameter_server().ends(task, None, 9)
    assert history.job.phase is Phase.STOPPING
    assert len(history.stopped()) == 4


def test_sidecars_and_evaluators_never_fail_a_job() -> None:
    """They restart within a budget of their own; when it is spent, the job continues without them."""
    sidecar = {"board": {"command": "board"}}
    history = History(clustered({"worker": 1}, sidecars=sidecar, restart={"max": 1, "backoff": [1, 1]})).start()
    history.ends("board", 1).wait()
    assert history.actions == [StartTask(HERE, "board", 1)]
    history.happens(TaskStarted(HERE, "board", 1, 1, 0.0)).ends("board", 1)
    assert history.job.phase is Phase.RUNNING
    assert history.ends("worker:0").job.exit_code == 0


def test_ctrl_c_gives_grace_a_second_one_kills_and_the_third_waits_for_nothing() -> None:
    history = mirrored(1).happens(Interrupted(2))
    assert history.actions == [StopTask(HERE, "worker:0", 0, 10.0)]
    history.happens(Interrupted(2))
    assert (history.job.phase, history.actions) == (Phase.STOPPING, [StopTask(HERE, "worker:0", 0, 0.0)])
    stopping = history.job
    assert history.ends("worker:0").job.exit_code == 130
    history.job = stopping
    history.happens(Interrupted(2))
    assert (history.job.phase, history.job.exit_code, len(history.job.unended())) == (Phase.ENDED, 125, 1)


# ---- preemption


@pytest.mark.parametrize("code", [42, 143])
def test_a_preempted_gang_may_save_together_and_starts_again_for_free(code: int) -> None:
    """Such an exit stops no other task before the grace is over; servers have nothing to save."""
    history = mirrored(timeouts={"grace": 7}).ends("worker:1", code)
    assert (history.job.phase, history.stopped()) == (Phase.SAVING, [])
    saving, began = history.job, history.now
    history.ends("worker:0", code)
    assert history.job.phase is Phase.BACKING_OFF
    assert (history.job.restarts.budget.charged, len(history.job.restarts.budget.free)) == ((), 1)
    history.job = saving
    assert (history.wait().stopped(), history.now - began) == (["worker:0"], 7)
    assert set(parameter_server().ends("chief:0", code).stopped()) == {"worker:0", "worker:1", "ps:0"}


def test_a_term_from_elsewhere_is_a_preemption_without_saving() -> None:
    """No task can save together with a process that died of TERM, so the others are stopped; the restart is free."""
    history = mirrored().ends("worker:1", None, 15)
    assert "worker:0" in history.stopped()
    history.ends("worker:0", None, 9)
    assert (history.job.phase, len(history.job.restarts.budget.free)) == (Phase.BACKING_OFF, 1)


# ---- the culprit


def far(**fields: Any) -> History:
    history = History(clustered({"worker": ["h1", "h2"]}, timeouts={"lease": 30, "grace": 10}, **fields))
    history.happens(HostJoined("h1"), HostJoined("h2"))
    history.happens(NamesResolved("h1", {"h2": "10.0.0.2"}), NamesResolved("h2", {"h1": "10.0.0.1"}))
    history.happens(PortsHeld("h1", {"worker:0": 2222}), PortsHeld("h2", {"worker:1": 2222}))
    return history.happens(*[TaskStarted(f"h{number + 1}", f"worker:{number}", 0, 7, 0.0) for number in range(2)])


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((1, 500.02), (7, 500.0)),  # the first exit may be reported later than that of its victim
        ((7, 500.0), (1, 500.1)),
        ((7, 500.0), (1, 499.0, True)),  # it was stopped
    ],
)
def test_the_culprit_is_who_exited_first_by_the_agents_clocks(first: tuple[Any, ...], second: tuple[Any, ...]) -> None:
    """On one host, the order of the news is that of the exits, whatever its clock says."""
    alone = mirrored(restart={"max": 0})
    alone.happens(TaskExited(HERE, "worker:0", 0, 7, None, 500.0), TaskGone(HERE, "worker:0", 0))
    alone.happens(TaskExited(HERE, "worker:1", 0, 1, None, 499.0), TaskGone(HERE, "worker:1", 0))
    assert alone.job.exit_code == 7
    history = far(restart={"max": 0})
    for host, task, (code, *when) in (("h1", "worker:0", first), ("h2", "worker:1", second)):
        history.happens(TaskExited(host, task, 0, code, None, *when), TaskGone(host, task, 0))
    assert history.job.exit_code == 7


# ---- loops and silence


RAISED = "ValueError at train.py:41"


def attempts_of(history: History, lived: float, first: Any, *others: Any, most: int = 10, **known: Any) -> int:
    """Let tasks end alike, some seconds after each start, until the job ends; return the number of attempts."""
    attempts = 0
    while history.job.phase is Phase.RUNNING and attempts < most:
        attempts += 1
        history.now += lived
        history.ends(*first, **known)
        for other in others:
            history.ends(other, None, 15)
        if history.job.phase is Phase.BACKING_OFF:
            history.wait()
        if history.job.phase is not Phase.ENDED:
            history.start()
    return attempts


@pytest.mark.parametrize(
    ("end", "lived", "known", "attempts", "reason"),
    [
        ((None, 11), 0.0, {}, 3, "crash loop"),
        ((1, None), 3600.0, {"failure": RAISED, "step": 400, "epoch": 2, "checkpoint": 4}, 3, "crash loop"),
        ((None, 9), 3600.0, {}, 10, ""),  # a kill from outside is no failure of the program …
        ((None, 9), 1.0, {}, 3, "crash loop"),  # … unless it directly follows each start
        ((None, 9), 3600.0, {"evidence": "out of memory"}, 3, "crash loop"),  # … or the kernel did it
    ],
)
def test_a_failure_that_recurs_without_progress_ends_the_job(
    end: tuple[int | None, int | None], lived: float, known: dict[str, Any], attempts: int, reason: str
) -> None:
    """Whatever is left of the budget, and although each failure leaves the window before the next."""
    history = mirrored(restart={"max": 50, "backoff": [0, 0]})
    assert attempts_of(history, lived, ("worker:0", *end), "worker:1", **known) == attempts
    assert reason in history.job.restarts.no_retry_reason
    assert history.job.restarts.budget.advanced == ("step" in known)


@pytest.mark.parametrize("progress", ["step", "checkpoint"])
def test_a_training_that_comes_further_each_time_goes_on(progress: str) -> None:
    """However often it is killed, and for free; the step of a victim counts like that of the culprit."""
    history = mirrored(restart={"max": 1, "window": 1e6, "backoff": [0, 0]})
    for number in range(50):
        history.now += 20
        history.ends("worker:0", None, 9).ends("worker:1", None, 15, **{progress: 100 * (number + 1)}).start()
        assert history.job.phase is Phase.RUNNING
    assert (history.job.restarts.budget.charged, history.job.restarts.budget.advanced) == ((), 50)


@pytest.mark.parametrize(
    ("task", "failure", "attempts"),
    [
        ("chief:0", RAISED, 2),
        ("chief:0", "UnavailableError at train.py:41", 3),
        ("chief:0", "PSUnavailableError at train.py:41", 3),
        ("chief:0", "output 0123456789ab", 3),
        ("ps:0", RAISED, 3),
    ],
)
def test_a_chief_that_raises_the_same_twice_is_not_restarted_again(task: str, failure: str, attempts: int) -> None:
    """Its servers train nothing, so that no other task shows at once that all fail alike."""
    history = parameter_server(restart={"max": 50})
    others = {"chief:0", "worker:0", "worker:1", "ps:0"} - {task}
    assert attempts_of(history, 3600, (task, 1), *others, failure=failure, step=400) == attempts
    assert f"crash loop: the same failure {attempts} times" in history.job.restarts.no_retry_reason


ALIKE = f"every task failed alike, so a restart would fail too: {RAISED}"


@pytest.mark.parametrize(
    ("first", "second", "reason"),
    [
        (RAISED, RAISED, ALIKE),
        (RAISED, "KeyError at data.py:7", ""),
        (RAISED, "", ""),
        ("output 01", "output 01", ""),
        ("UnavailableError at train.py:41", "UnavailableError at train.py:41", ""),  # an error of the network
    ],
)
def test_what_all_tasks_raise_alike_is_not_retried(first: str, second: str, reason: str) -> None:
    job = mirrored().ends("worker:0", 1, failure=first).ends("worker:1", 1, failure=second).job
    assert (job.phase, job.restarts.no_retry_reason) == (Phase.ENDED if reason else Phase.BACKING_OFF, reason)


def test_a_worker_that_restarts_alone_may_fail_alike_now_and_then() -> None:
    """The others keep training; repeated within the window, the same failure is a crash loop."""
    for lived, attempts in [(3600.0, 10), (100.0, 3)]:
        history, count = parameter_server(restart={"max": 50, "backoff": [0, 0], "window": "10m"}), 0
        while history.job.phase is Phase.RUNNING and count < 10:
            count += 1
            history.now += lived
            history.ends("worker:1", 1, failure=RAISED)
            history.happens(TaskStarted(HERE, "worker:1", history.job.tasks["worker:1"].attempt, 1, 0.0))
        assert count == attempts


HUNG = JobHung(0, "no output or progress for 15 min")


def test_a_gang_that_hangs_shows_its_stacks_and_starts_again() -> None:
    """What was found in an earlier attempt, or while somebody debugs a task, is too late."""
    reached = BreakpointReached(HERE, "worker:1", 0, "/code/train.py", 40, "step")
    history = mirrored().happens(reached, HUNG, BreakpointLeft(HERE, "worker:1", 0))
    assert history.stopped() == []
    history.happens(HUNG)
    stops = [action for action in history.actions if isinstance(action, StopTask)]
    assert [(stop.task, stop.with_stacks) for stop in stops] == [("worker:0", True), ("worker:1", True)]
    history.ends("worker:0", None, 6).ends("worker:1", None, 6).wait().start()
    assert history.happens(HUNG).stopped() == []


def test_a_gang_that_hangs_twice_at_one_place_ends() -> None:
    """Unless it has come further in between; another place is another hang."""
    for steps, places, code in (((0, 0), "aa", 124), ((5, 9), "aa", None), ((0, 0), "ab", None), ((5, 5), "aa", 124)):
        history = mirrored(1)
        for attempt, step in enumerate(steps):
            place = f"{places[attempt]}.py, line 1"
            if attempt:
                history.wait().start()
            history.happens(JobHung(attempt, "no output for 15 min", place))
            history.happens(TaskExited(HERE, "worker:0", attempt, None, 6, history.now, step=step))
            history.happens(TaskGone(HERE, "worker:0", attempt))
        assert history.job.exit_code == code
        assert code is None or "(a hang at a.py, line 1)" in history.job.restarts.no_retry_reason


def test_why_a_gang_hangs_is_known_beside_the_job() -> None:
    """Only while that is the cause of its end, and of this end."""
    explained = HangExplained("worker:1 sleeps (data.py, line 40); worker:0 waits for it")
    history = mirrored(1, restart={"max": 1}).happens(explained)
    assert history.known.hang_of(history.job) == ""
    history.now += 1
    history.happens(HUNG)
    assert history.known.hang_of(history.job) == ""
    history.happens(explained)
    assert history.known.hang_of(history.job) == explained.sentence
    history.ends("worker:0", None, 6).wait().start()
    assert history.known.hang_of(history.job) == ""
    history.happens(HUNG._replace(attempt=1))
    assert history.known.hang_of(history.job) == ""
    history.happens(Interrupted(2), explained)
    assert history.known.hang_of(history.job) == ""


def test_a_noticed_hang_is_that_of_its_attempt() -> None:
    """While nothing else holds it up; only when the tasks go on by themselves, that is said."""
    history = mirrored(1).happens(HangNoticed(0, "worker:0 sleeps"))
    assert history.known.noticed_of(history.job) == "worker:0 sleeps"
    history.happens(HangNoticed(0, ""))
    assert history.known.noticed_of(history.job) == ""
    history.happens(HangNoticed(0, "worker:0 sleeps"), BreakpointReached(HERE, "worker:0", 0, "a.py", 1, "f"))
    assert history.known.noticed_of(history.job) == ""
    assert history.told(HangNoticed(0, "")) == []
    history.happens(HangNoticed(0, "worker:0 sleeps"), BreakpointLeft(HERE, "worker:0", 0))
    assert history.told(HangNoticed(0, "")) == ["the tasks go on"]
    history.happens(HangNoticed(0, "worker:0 sleeps")).ends("worker:0", None, 9)
    assert history.known.noticed_of(history.job) == ""


# ---- those who only look on


def test_evaluator_and_sidecars_live_through_a_restart_of_the_gang() -> None:
    """A TensorBoard in use should not be interrupted."""
    plan = clustered({"worker": 1, "evaluator": 1}, sidecars={"board": {"command": "board"}})
    history = History(plan).start().ends("worker:0", None, 9)
    assert history.stopped() == ["worker:0"]
    assert history.job.phase is Phase.BACKING_OFF
    history.wait().happens(PortsHeld(HERE, {"worker:0": 5}))
    assert history.actions == [StartTask(HERE, "worker:0", 1)]
    assert history.job.tasks["board"].is_alive
    history.happens(TaskStarted(HERE, "worker:0", 1, 2, 0.0)).ends("worker:0")
    assert history.ends("evaluator:0").wait().stopped() == ["board"]
    history.ends("board", None, 15)
    assert (history.job.phase, history.job.exit_code) == (Phase.ENDED, 0)


def test_what_only_looks_on_may_be_required() -> None:
    """It has a budget of its own; when that is spent, the job fails with its code."""
    sidecars = {"board": {"command": "board", "required": True}}
    history = History(clustered({"worker": 1}, sidecars=sidecars, restart={"max": 1, "backoff": [0, 0]})).start()
    history.ends("board", 9)
    assert history.job.phase is Phase.RUNNING
    history.ends("board", 9).ends("worker:0", None, 15)
    assert (history.job.phase, history.job.exit_code) == (Phase.ENDED, 9)


# ---- before the first start, hosts try to reach each other


FAR = {"worker": ["a:2222", "b:2222", "b:2223"]}
ADDRESSES = {"a": "10.0.0.1", "b": "10.0.0.2"}


def prepared(cluster: dict[str, list[str]], **fields: object) -> History:
    history = History(clustered(cluster, **fields), preflight=True)
    hosts = [host.host for host in history.job.plan.hosts]
    history.happens(*(HostJoined(host) for host in hosts))
    for host in hosts:
        ports = {task.task: task.address.port or 0 for task in history.job.plan.on_host(host) if task.address}
        others = {name: address for name, address in ADDRESSES.items() if name in hosts and name != host}
        history.happens(NamesResolved(host, others), PortsHeld(host, ports))
    return history


def test_each_host_tries_the_tasks_of_the_others_before_they_start() -> None:
    """On their real addresses; it listens on the addresses of its own tasks."""
    history = prepared(FAR)
    assert history.actions == [
        ProbePeers("a", {"worker:0": 2222}, {"worker:1": ("b", 2222), "worker:2": ("b", 2223)}),
        ProbePeers("b", {"worker:1": 2222, "worker:2": 2223}, {"worker:0": ("a", 2222)}),
    ]
    assert (history.job.phase, history.happens(PeersProbed("a", {})).actions) == (Phase.PREPARING, [])
    history.happens(PeersProbed("b", {}))
    assert [type(action) for action in history.actions] == [StartTask] * 3


def test_what_is_out_of_reach_is_named_and_nothing_starts() -> None:
    """For every direction, once all have tried; exit code 3."""
    history = prepared(FAR).happens(PeersProbed("a", {"worker:2": "timed out"}))
    assert history.job.phase is Phase.PREPARING
    history.happens(PeersProbed("b", {"worker:0": "connection refused"}))
    assert (history.job.phase, history.job.exit_code) == (Phase.ENDED, 3)
    assert history.culprit.message.splitlines()[:2] == [
        "a cannot reach worker:2 at b:2223: timed out",
        "b cannot reach worker:0 at a:2222: connection refused",
    ]
    assert "hosts.X.address" in history.culprit.message


@pytest.mark.parametrize(
    ("cluster", "fields"),
    [({"worker": ["a", "a"]}, {}), (FAR, {"strategy": "none"}), ({"worker": ["a"], "evaluator": ["b"]}, {})],
)
def test_tasks_that_need_nobody_elsewhere_are_not_asked(cluster: dict[str, list[str]], fields: dict[str, str]) -> None:
    """With a single host, without a cluster, and for an evaluator, which is outside of it."""
    history = prepared(cluster, **fields)
    assert history.job.phase is Phase.RUNNING


def test_a_restart_does_not_ask_again() -> None:
    """The hosts reached each other once, and a restart must be quick."""
    history = Willing(clustered(FAR, restart={"backoff": [0, 0]}))
    history.ends("worker:0", 1)
    assert (history.job.attempt, history.job.phase) == (1, Phase.RUNNING)
    assert not [action for action in history.seen if isinstance(action, ProbePeers)]


# ---- ends that need nobody's help: tasks that do not die, and hosts that do not confirm it


FENCE = 10 + 5  # grace and margin of a job without a lease


def passes(job: History, seconds: float) -> History:
    job.now += seconds
    return job.happens(TimePassed())


def test_a_host_that_confirms_nothing_is_given_up_after_grace_kill_and_fence() -> None:
    """The exit code and the summary tell that its tasks may still run."""
    job = mirrored().happens(StopRequested(1.0))
    passes(job, 1 + FENCE - 0.1)
    assert job.job.phase is Phase.STOPPING
    passes(job, 0.1)
    assert (job.job.phase, job.job.exit_code) == (Phase.ENDED, 125)
    assert AbandonHost(HERE, ("worker:0", "worker:1")) in job.actions
    assert summary.summary(job.job, "/logs", lambda *_: []).splitlines()[0] == (
        "may still run: worker:0 (pid 1 on localhost): its host has not confirmed its end, worker:1 (pid 1 on"
        " localhost): its host has not confirmed its end; look there with ps, and end it before the next run"
    )


def test_a_process_that_waits_in_the_kernel_is_named_with_its_state() -> None:
    """And no other attempt follows, as the two would write to the same files."""
    job = mirrored(restart={"max": 3, "backoff": [0, 0]})
    job.ends("worker:0", 1).happens(TaskLingers(HERE, "worker:1", 0, 7, "state D in rpc_wait"))
    passes(job, FENCE + 1)
    assert (job.job.phase, job.job.exit_code) == (Phase.ENDED, 125)
    assert job.job.restarts.no_retry_reason == "worker:1 may still run"
    assert "worker:1 (pid 7 on localhost): state D in rpc_wait" in summary.unended(job.job)[0]


def test_a_process_that_ends_late_is_not_told_of() -> None:
    """Its server answered again."""
    job = mirrored().happens(StopRequested(1.0), TaskLingers(HERE, "worker:1", 0, 7, "state D in rpc_wait"))
    job.ends("worker:0", None, 9).ends("worker:1", None, 9)
    assert (job.job.phase, job.job.exit_code, job.job.unended()) == (Phase.ENDED, 143, [])


def test_a_success_whose_servers_do_not_end_is_not_reported_as_one() -> None:
    """The result is there, and so may be the processes."""
    job = History(clustered({"chief": 1, "worker": 1, "ps": 1})).start().ends("chief:0")
    while job.job.phase is not Phase.ENDED:
        job.wait()
    assert (job.job.phase, job.job.exit_code) == (Phase.ENDED, 125)
    assert [task.task for task in job.job.unended()] == ["worker:0", "ps:0"]


def test_a_host_that_leaves_and_does_not_end_is_given_up() -> None:
    """It may keep its link for ever."""
    job = far().happens(HostLeaving("h2", "its agent was terminated there", is_drain=True))
    job.ends("worker:0", None, 15, was_told=True)
    for _ in range(5):
        if job.job.phase is not Phase.ENDED:
            job.wait()
    assert (job.job.phase, job.job.exit_code) == (Phase.ENDED, 125)


def test_a_host_whose_link_was_cut_gets_its_time_once_it_is_back() -> None:
    """It has only then got the order to stop its tasks."""
    job = far().happens(StopRequested(1.0))
    job.ends("worker:0", None, 15).happens(LinkLost("h2", "cut"))
    job.now += 40
    job.happens(LinkRestored("h2", is_leaving=False))
    passes(job, 30)
    assert job.job.phase is Phase.STOPPING
    passes(job, 26)
    assert (job.job.phase, job.job.exit_code) == (Phase.ENDED, 125)
