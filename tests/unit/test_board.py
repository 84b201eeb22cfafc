"""TensorBoard as part of a run: its plan, how to reach it, and its lifecycle beside a job."""

import json
from typing import Any

import pytest

from support.job_history import HERE, History
from support.specs import clustered, planned
from tflaunch.core.actions import HoldPorts, StartTask
from tflaunch.core.events import HostJoined, PortOpened, PortsHeld, TaskStarted
from tflaunch.core.job_state import Phase
from tflaunch.core.states import TaskPhase
from tflaunch.plan import serialize, tensorboard
from tflaunch.plan.model import TaskPlan

NAME = "tensorboard"
SPEC = {"cluster": {"worker": 1}, "command": ["python", "train.py"], "tensorboard": "logs/"}
ON_A = {"cluster": {"worker": ["a"]}, "hosts": {"a": {"python": "~/v/bin/python"}}}
AT_ONCE = {"max": 2, "backoff": [0, 0]}


def of(**fields: Any) -> TaskPlan:
    process = tensorboard.tensorboard_of(planned({**SPEC, **fields}))
    assert process is not None
    return process


class TestPlan:
    def test_it_runs_beside_the_task_that_leads(self) -> None:
        """On the chief's host, else on that of worker:0, in its directory and with its environment."""
        hosts = {"c": {"workdir": "/scratch", "env": {"A": "1"}}}
        cluster = {"worker": ["a", "b"], "chief": ["c"]}
        process = of(cluster=cluster, hosts=hosts, roles={"chief": {"env": {"B": "2"}}})
        assert (process.task, process.host, process.workdir) == (NAME, "c", "/scratch")
        assert (process.env["A"], process.env["B"], process.env["CUDA_VISIBLE_DEVICES"]) == ("1", "2", "-1")
        assert "TF_CONFIG" in process.unset
        assert not process.required
        assert of(cluster={"worker": ["a", "b"]}).host == "a"
        assert of(tensorboard="~/logs").argv[4] == "${host:HOME}/logs", "no shell is there to expand it"

    @pytest.mark.parametrize(
        ("fields", "python"),
        [
            ({}, "python"),
            ({"command": ["/opt/py/bin/python3.11", "train.py"]}, "/opt/py/bin/python3.11"),
            ({"command": ["sh", "-c", "true"]}, "python3"),
            ({"command": ["sh"], **ON_A}, "~/v/bin/python"),
            (ON_A, "~/v/bin/python"),
        ],
    )
    def test_its_python_is_that_of_the_task(self, fields: dict[str, Any], python: str) -> None:
        """Or the host's Python, if the task is not a Python program."""
        assert of(**fields).argv[:3] == (python, "-c", tensorboard.PROGRAM)

    def test_it_chooses_its_port_on_the_loopback_address(self) -> None:
        plan = planned(SPEC)
        assert of().argv[3:] == ("--logdir", "logs/", "--host", "127.0.0.1")
        assert str(of().address) == "localhost:auto"
        assert serialize.from_json(json.loads(json.dumps(serialize.as_json(plan)))) == plan


class TestReach:
    @pytest.mark.parametrize(
        ("settings", "command"),
        [
            ({}, "ssh -N -L 6007:localhost:6007 h1"),
            ({"ssh": "ann@10.0.0.1:2222"}, "ssh -N -L 6007:localhost:6007 -p 2222 ann@10.0.0.1"),
            ({"ssh": "10.0.0.1", "identity_file": "my key"}, "ssh -N -L 6007:localhost:6007 -i 'my key' 10.0.0.1"),
        ],
    )
    def test_of_another_host_the_way_is_told(self, settings: dict[str, Any], command: str) -> None:
        plan = planned({**SPEC, "cluster": {"worker": ["h1"]}, "hosts": {"h1": settings}})
        told = tensorboard.reach(plan, 6007).lines()
        assert told == ["TensorBoard: http://localhost:6007/ on h1; to open it here:", f"    {command}"]

    def test_of_a_container_there_is_none_and_of_this_machine_the_page_is_told(self) -> None:
        plan = planned({**SPEC, "cluster": {"worker": ["h1"]}, "hosts": {"h1": {"docker": "box"}}})
        (line,) = tensorboard.reach(plan, 6006).lines()
        assert "inside the container box" in line
        assert tensorboard.reach(planned(SPEC), 6006).lines() == ["TensorBoard: http://localhost:6006/"]


def begun(**fields: Any) -> History:
    """Return a job whose tasks run and whose TensorBoard is starting."""
    plan = clustered({"worker": 1}, **{"tensorboard": "logs/", "restart": AT_ONCE, **fields})
    history = History(plan)
    history.happens(HostJoined(HERE), PortsHeld(HERE, {"worker:0": 10000}))
    return history.happens(TaskStarted(HERE, "worker:0", 0, 1, 0.0), PortOpened(HERE, "worker:0", 0))


def listening(**fields: Any) -> History:
    """Return that job, with TensorBoard listening."""
    return begun(**fields).happens(TaskStarted(HERE, NAME, 0, 2, 0.0), PortOpened(HERE, NAME, 0, 6006))


class TestBesideAJob:
    """The job never waits for TensorBoard, and TensorBoard never fails the job."""

    def test_it_starts_with_the_job(self) -> None:
        """No port is held for it, nor for the tasks of a strategy without a cluster."""
        history = History(clustered({"worker": 1}, tensorboard="logs/", strategy="mirrored")).happens(HostJoined(HERE))
        assert history.job.tasks[NAME].phase is TaskPhase.STARTING
        history = History(clustered({"worker": 1}, tensorboard="logs/")).happens(HostJoined(HERE))
        assert history.actions == [HoldPorts(HERE, {"worker:0": 0})]
        started = [StartTask(HERE, "worker:0", 0), StartTask(HERE, NAME, 0)]
        assert history.happens(PortsHeld(HERE, {"worker:0": 10000})).actions == started

    def test_after_an_end_it_may_have_another_port(self) -> None:
        history = listening().ends(NAME, 255)
        assert history.actions == [StartTask(HERE, NAME, 1)]
        assert history.status().tensorboard is None
        assert [task.address for task in history.status().tasks if task.task == NAME] == ["localhost:auto"]
        history.happens(TaskStarted(HERE, NAME, 1, 3, 0.0), PortOpened(HERE, NAME, 1, 7000))
        shown = history.status()
        assert (shown.tensorboard and shown.tensorboard.url) == "http://localhost:7000/"
        assert [task.address for task in shown.tasks if task.task == NAME] == ["localhost:7000"]

    def test_it_lives_through_a_restart_of_the_gang(self) -> None:
        history = listening().ends("worker:0", None, 9)
        assert history.actions[1:] == [HoldPorts(HERE, {"worker:0": 0})]
        history.happens(PortsHeld(HERE, {"worker:0": 10001}))
        assert (history.job.phase, history.job.tasks[NAME].is_alive) == (Phase.RUNNING, True)
        board = history.status().tensorboard
        assert (board and board.url) == "http://localhost:6006/"


def test_its_address_is_told_once() -> None:
    history = begun(restart={"max": 0}).happens(TaskStarted(HERE, NAME, 0, 2, 0.0))
    assert history.told(PortOpened(HERE, NAME, 0, 6006)) == ["TensorBoard: http://localhost:6006/"]
    assert history.told(PortOpened(HERE, "worker:0", 0)) == []
