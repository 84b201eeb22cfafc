"""Spare hosts: when they take the place of lost ones, and what changes in the plan."""

from typing import Any

from support.job_history import Willing
from support.specs import clustered
from tflaunch.core.actions import AbandonHost, ImportModules, LookUpNames, ProbePeers, StartTask
from tflaunch.core.events import HostLeaving, HostLost, LinkLost, NamesResolved, PeersProbed
from tflaunch.core.job_state import Phase
from tflaunch.core.states import HostPhase
from tflaunch.explain import summary
from tflaunch.plan import attempts, serialize
from tflaunch.plan.model import Plan

SLOW = {"restart": {"max": 3, "backoff": [100, 100], "window": 600}, "timeouts": {"lease": 30, "grace": 10}}
SERVERS = {"chief": ["a"], "ps": ["a"], "worker": ["b", "c"]}


def planned(cluster: dict[str, list[str]], **fields: Any) -> Plan:
    return clustered(cluster, **{"spares": ["s"], **SLOW, **fields})


def gang(*away: str, **fields: Any) -> Willing:
    return Willing(planned({"worker": ["a", "b", "c"]}, **fields), *away)


def hosts(job: Willing) -> dict[str, str]:
    return {process.task: process.host for process in job.job.plan.processes()}


def test_it_has_no_task_at_first() -> None:
    """But an agent, and what the tasks import."""
    plan = planned({"worker": ["a", "b", "c"]})
    job = Willing(plan._replace(preload=("tensorflow",)))
    assert hosts(job) == {"worker:0": "a", "worker:1": "b", "worker:2": "c"}
    assert job.job.hosts["s"].phase is HostPhase.CONNECTED
    assert ImportModules("s", "worker:0") in job.seen


def test_it_takes_the_place_of_a_lost_host_without_a_wait() -> None:
    """The others restart with it, at its address; while the tasks of a silent host may be alive, nothing moves."""
    silent = gang().happens(LinkLost("b", "silence"))
    assert [hosts(silent.waits(seconds))["worker:1"] for seconds in (40, 10)] == ["b", "s"]
    job = gang().happens(HostLost("b", "the power is off"))
    assert job.job.phase is Phase.RUNNING
    assert hosts(job) == {"worker:0": "a", "worker:1": "s", "worker:2": "c"}
    assert [str(task.address).partition(":")[0] for task in job.job.plan.tasks] == ["a", "s", "c"]
    started = [(action.host, action.attempt) for action in job.seen if isinstance(action, StartTask)]
    assert started == [("a", 1), ("s", 1), ("c", 1)]
    order = [type(action) for action in job.seen if isinstance(action, AbandonHost | StartTask)]
    assert order == [AbandonHost, StartTask, StartTask, StartTask]  # its session is closed before the others start
    assert summary.moves(job.job) == ["worker:1 moved from b to s; 0 spare hosts left"]


def test_the_lost_host_becomes_a_spare_one_and_takes_over_in_turn() -> None:
    """Also for the tasks of another host."""
    job = gang().happens(HostLost("b", "the power is off")).waits(5)
    assert job.job.hosts["b"].can_take_over
    job.happens(HostLost("c", "the power is off"))
    assert hosts(job) == {"worker:0": "a", "worker:1": "s", "worker:2": "b"}
    job.waits(10).happens(HostLost("s", "the power is off"))
    assert hosts(job) == {"worker:0": "a", "worker:1": "c", "worker:2": "b"}


def test_a_drained_host_is_replaced() -> None:
    job = gang().happens(HostLeaving("b", "its agent was terminated there", is_drain=True))
    for task in ("worker:0", "worker:1", "worker:2"):
        job.ends(task, 143, was_told=True)
    job.happens(HostLost("b", "its agent has ended"))
    assert hosts(job)["worker:1"] == "s"
    assert not job.job.restarts.budget.charged


def test_a_gang_shrinks_only_without_a_spare_host_and_grows_with_one() -> None:
    job = gang(elastic={"min_workers": 2, "retry": 60}, restart={"max": 9, "backoff": [1, 1]})
    job.loses("b")
    assert hosts(job) == {"worker:0": "a", "worker:1": "s", "worker:2": "c"}
    job.loses("c").waits(2)
    assert hosts(job) == {"worker:0": "a", "worker:1": "s"}
    job.away.discard("b")
    job.waits(130)
    assert hosts(job) == {"worker:0": "a", "worker:1": "s", "worker:2": "b"}


def test_the_gang_moves_with_a_worker_of_parameter_servers() -> None:
    """The others know a worker by its address; but an agent that has died alone is started again first."""
    job = Willing(planned(SERVERS))
    job.happens(HostLost("c", "the agent was killed")).waits(200)
    assert hosts(job)["worker:1"] == "c"
    assert job.job.tasks["chief:0"].attempt == 0
    job.happens(LinkLost("c", "silence")).waits(50)
    assert hosts(job)["worker:1"] == "s"
    assert job.job.tasks["chief:0"].attempt > 0


def test_an_evaluator_moves_alone() -> None:
    """No task connects to it."""
    job = Willing(planned({"worker": ["a", "b"], "evaluator": ["c"]}))
    job.happens(HostLost("c", "the power is off"))
    assert hosts(job) == {"worker:0": "a", "worker:1": "b", "evaluator:0": "s"}
    assert [action for action in job.seen if isinstance(action, StartTask)] == [StartTask("s", "evaluator:0", 1)]


def test_a_lost_spare_host_does_not_end_the_job() -> None:
    job = gang().happens(LinkLost("s", "silence")).waits(50)
    assert job.job.phase is Phase.RUNNING
    assert job.job.attempt == 0
    assert job.job.hosts["s"].phase is HostPhase.CONNECTED
    absent = gang("s")
    assert (absent.job.phase, absent.job.hosts["s"].phase) == (Phase.RUNNING, HostPhase.DOWN)
    absent.away.clear()
    assert absent.waits(70).job.hosts["s"].can_take_over


def test_the_preflight_rules_out_a_spare_host_that_does_not_reach_the_others() -> None:
    """Or whose name they do not know; the job goes on."""

    class Lost(Willing):
        def _answers(self, action: Any) -> Any:
            if isinstance(action, ProbePeers) and action.host == "s":
                return [PeersProbed("s", {"worker:0": "no answer"})]
            return super()._answers(action)

    class Unknown(Willing):
        def _answers(self, action: Any) -> Any:
            if isinstance(action, LookUpNames) and action.host == "a":
                assert "s" in action.names
                return [NamesResolved("a", {name: "" if name == "s" else "10.0.0.1" for name in action.names})]
            return super()._answers(action)

    for kind, flaw in ((Lost, "s cannot reach worker:0 at a:"), (Unknown, "a does not know the name 's'")):
        job = kind(planned({"worker": ["a", "b", "c"]}))
        assert job.job.phase is Phase.RUNNING
        assert job.job.hosts["s"].flaw.startswith(flaw)
        job.happens(HostLost("b", "the power is off"))
        assert hosts(job)["worker:1"] == "b"


def test_tasks_look_as_the_host_wants_them() -> None:
    """Interpreter, directory, variables and address are those of the host; the rest stays. JSON keeps it."""
    there = {"python": "/opt/s/python", "workdir": "/s", "env": {"DATA": "/data/s"}}
    plan = planned(
        {"worker": ["a", "b"]}, hosts={"a": {"env": {"DATA": "/data/a"}}, "s": there}, command=["python", "train.py"]
    )
    assert serialize.from_json(serialize.as_json(plan)) == plan
    task = attempts.moved(plan, {"a": "s"}).find("worker:0")
    assert (task.argv, task.workdir, task.env["DATA"]) == (("/opt/s/python", "train.py"), "/s", "/data/s")
    assert (task.host, str(task.address)) == ("s", "s:auto")
    assert attempts.moved(plan, {"a": "s"}).find("worker:1") == plan.find("worker:1")
    back = attempts.moved(plan, {"b": "a"}).find("worker:1")
    assert (back.host, back.env["DATA"], back.env["TFLAUNCH_TASK"]) == ("a", "/data/a", "worker:1")
