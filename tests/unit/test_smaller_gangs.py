"""Jobs that continue without a host: smaller gangs, and workers that restart alone when their host returns."""

from typing import Any

import pytest

from support.job_history import Willing
from support.specs import clustered
from tflaunch.core.actions import StopTask
from tflaunch.core.events import HostLeaving, HostLost
from tflaunch.core.job_state import Cause, Phase
from tflaunch.core.states import HostPhase
from tflaunch.plan.attempts import addresses

QUICK = {"restart": {"max": 2, "backoff": [1, 1], "window": 600}, "timeouts": {"lease": 30, "grace": 10}}
ELASTIC = {"elastic": {"min_workers": 2, "retry": 60}, **QUICK}
SERVERS = {"chief": ["a"], "ps": ["a"], "worker": ["b", "c"]}


def gang(**fields: object) -> Willing:
    return Willing(clustered({"worker": ["a", "b", "c"]}, **{**ELASTIC, **fields}))


def test_a_gang_restarts_smaller_when_a_host_stays_away() -> None:
    """The remaining workers are renumbered, and TF_CONFIG lists no other. A host whose agent died alone is there."""
    assert gang().happens(HostLost("b", "the agent was killed")).waits(2).workers() == ["a", "b", "c"]
    job = gang().loses("b").waits(2)
    assert job.job.phase is Phase.RUNNING
    assert job.workers() == ["a", "c"]
    assert job.started() == ["worker:0", "worker:1"]
    last = job.job.plan.find("worker:1")
    assert (last.task_index, last.env["TFLAUNCH_TASK"]) == (1, "worker:1")
    assert len(addresses(job.job.plan)["worker"]) == 2
    job.ends("worker:0").ends("worker:1")
    assert (job.waits(1).job.phase, job.job.exit_code) == (Phase.ENDED, 0)


def test_a_gang_grows_again_when_the_host_is_back() -> None:
    """Not before the work since the last restart outweighs the interruption, which costs no work and no budget."""
    job = gang().loses("b").waits(2)
    job.away.clear()
    job.waits(55)
    assert job.workers() == ["a", "c"]
    charged, stopped = job.job.restarts.budget.charged, list[float]()
    while not stopped:
        job.waits(1)
        stopped = [action.grace for action in job.seen if isinstance(action, StopTask)]
    assert stopped == [10, 10]
    assert (job.job.phase, job.workers()) == (Phase.RUNNING, ["a", "b", "c"])
    assert job.job.restarts.budget.charged == charged


@pytest.mark.parametrize("fields", [{}, {"restart": {"max": 0}}])
def test_a_job_does_not_go_on_without_its_chief(fields: dict[str, Any]) -> None:
    """However many workers are left: it leads them, and writes the checkpoints."""
    plan = clustered({"chief": ["a"], "worker": ["b", "c", "d"]}, **{**ELASTIC, **fields})
    assert Willing(plan).loses("a").waits(1000).job.exit_code == 125


@pytest.mark.parametrize(
    ("cluster", "phase"), [({"worker": ["a", "b", "c"]}, Phase.WAITING_FOR_HOSTS), (SERVERS, Phase.RUNNING)]
)
def test_without_elastic_all_hosts_are_needed(cluster: dict[str, list[str]], phase: Phase) -> None:
    """They are tried until `timeouts.lost_host`; other workers of servers train on, and no budget is charged."""
    job = Willing(clustered(cluster, **QUICK)).loses("b").waits(890)
    assert (job.job.phase, job.job.tasks["worker:0"].budget.charged) == (phase, ())
    job.waits(15)
    assert (job.job.phase, job.job.exit_code) == (Phase.ENDED, 125)
    assert (job.culprit.cause, job.culprit.name) == (Cause.UNREACHABLE, "b")


def test_a_host_that_fails_again_and_again_rests_longer_and_longer() -> None:
    """Every return costs the other tasks the work since their last checkpoint."""
    job = gang(restart={"max": 50, "backoff": [1, 1], "window": 1e6})
    gaps = []
    for _ in range(4):
        job.loses("b").waits(2)
        assert job.workers() == ["a", "c"]
        job.away.clear()
        left = job.now
        while job.workers() == ["a", "c"]:
            job.waits(1)
        gaps.append(job.now - left)
    assert gaps == sorted(gaps)
    assert gaps[-1] > 2 * gaps[0]


def test_at_the_first_start_every_host_counts() -> None:
    """A host with a misspelt name must not be left out silently."""
    job = Willing(clustered({"worker": ["a", "b", "c"]}, **ELASTIC), "b")
    assert (job.job.phase, job.job.exit_code) == (Phase.ENDED, 3)


# ---- parameter servers


def test_a_worker_on_a_lost_host_starts_alone_when_the_host_is_back() -> None:
    job = Willing(clustered(SERVERS, **QUICK))
    address = job.job.plan.find("worker:0").address
    job.happens(HostLost("b", "the agent was killed"))
    assert job.job.phase is Phase.RUNNING
    job.waits(2)
    attempts = {task: state.attempt for task, state in job.job.tasks.items()}
    assert attempts == {"chief:0": 0, "ps:0": 0, "worker:0": 1, "worker:1": 0}
    assert job.job.plan.find("worker:0").address == address


def test_a_parameter_server_job_goes_on_with_fewer_workers() -> None:
    """The host is retried now and then; the job succeeds without it."""
    job = Willing(clustered(SERVERS, **{**ELASTIC, "elastic": {"min_workers": 1, "retry": 60}})).loses("b").waits(7200)
    assert job.job.phase is Phase.RUNNING
    job.ends("chief:0")
    assert (job.waits(1).job.phase, job.job.exit_code) == (Phase.ENDED, 0)


def test_a_parameter_server_job_needs_its_least_workers() -> None:
    """The remaining ones are not given up: all restart on the available hosts."""
    job = Willing(clustered(SERVERS, **{**ELASTIC, "elastic": {"min_workers": 2, "retry": 60}})).loses("b")
    assert job.job.phase is not Phase.RUNNING
    assert job.waits(1000).job.exit_code == 125


def test_the_host_of_a_sidecar_is_tried_again_while_the_job_runs() -> None:
    """It is given up without harm, and a gang that restarts never waits for it."""
    plan = clustered({"worker": ["a", "b"]}, sidecars={"board": {"command": "board", "host": "c"}}, **QUICK)
    job = Willing(plan).happens(HostLost("c", "killed")).waits(2)
    assert (job.job.phase, job.job.tasks["board"].attempt) == (Phase.RUNNING, 1)
    job.loses("c").waits(600)
    assert job.job.phase is Phase.RUNNING
    assert job.job.hosts["c"].phase is HostPhase.DOWN
    job.ends("worker:0", None, 9)
    job.waits(600)
    assert job.job.phase is Phase.RUNNING
    assert job.job.tasks["worker:0"].attempt > 0


# ---- hosts that are emptied


def test_a_drained_host_lets_its_tasks_and_their_peers_save() -> None:
    """No task is killed before the grace is over, and the restart is free."""
    job = gang().happens(HostLeaving("b", "terminated", is_drain=True))
    assert job.job.phase is Phase.SAVING
    assert not [action for action in job.seen if isinstance(action, StopTask)]
    for task in ("worker:0", "worker:1", "worker:2"):
        job.ends(task, 42, was_told=task == "worker:1")
    job.loses("b").waits(5)
    assert (job.job.phase, job.workers()) == (Phase.RUNNING, ["a", "c"])
    assert (len(job.job.restarts.budget.charged), len(job.job.restarts.budget.free)) == (0, 1)


def test_a_task_that_exits_with_0_because_its_host_is_drained_is_not_done() -> None:
    """Its program may have saved and left, as at the end of its training."""
    plan = clustered({"worker": ["a", "a"]}, **QUICK)
    job = Willing(plan).happens(HostLeaving("a", "terminated", is_drain=True))
    job.ends("worker:0", was_told=True).ends("worker:1", was_told=True)
    assert (job.job.phase, job.job.exit_code) == (Phase.BACKING_OFF, None)
    job.happens(HostLost("a", "it has ended")).waits(5)
    assert [job.job.tasks[f"worker:{index}"].attempt for index in range(2)] == [1, 1]
    assert job.ends("worker:0").ends("worker:1").job.exit_code == 0


@pytest.mark.parametrize(("code", "signal"), [(None, 15), (0, None)])
def test_a_worker_on_a_drained_host_is_not_charged(code: int | None, signal: int | None) -> None:
    """It returns with its host."""
    job = Willing(clustered(SERVERS, **QUICK)).happens(HostLeaving("b", "terminated", is_drain=True))
    job.ends("worker:0", code, signal, was_told=True)
    job.happens(HostLost("b", "it has ended")).waits(2)
    worker = job.job.tasks["worker:0"]
    assert (worker.attempt, len(worker.budget.charged), len(worker.budget.free)) == (1, 0, 1)
