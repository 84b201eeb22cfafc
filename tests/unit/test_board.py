"""TensorBoard as part of a run: its plan, how to reach it, and its lifecycle beside a job."""

from __future__ import annotations

import json
from typing import Any

import pytest

from support.job_history import HERE, History
from support.specs import clustered, planned
from tflaunch.core.actions import HoldPorts, StartTask
from tflaunch.core.events import HostJoined, PortOpened, PortsHeld, PortsRefused, TaskStarted
from tflaunch.core.job_state import Phase
from tflaunch.core.task_state import TaskPhase
from tflaunch.explain.messages import Logs, messages_about
from tflaunch.explain.run_status import Status
from tflaunch.explain.status import StatusInputs, status
from tflaunch.plan import attempts, placeholders, serialize, tensorboard
from tflaunch.plan.model import Plan, TaskPlan

pytestmark = pytest.mark.unit

NAME = "tensorboard"
SPEC = {"cluster": {"worker": 1}, "command": ["python", "train.py"], "tensorboard": "logs/"}
ON_A = {"cluster": {"worker": ["a"]}, "hosts": {"a": {"python": "~/v/bin/python"}}}
AT_ONCE = {"max": 2, "backoff": [0, 0]}


def of(**fields: Any) -> TaskPlan:
    process = tensorboard.tensorboard_of(planned({**SPEC, **fields}))
    assert process is not None
    return process


def command_of(plan: Plan) -> tuple[str, ...]:
    """Return the command of a plan's TensorBoard as it is started."""
    return placeholders.fill(plan.find(NAME), plan, "run", "0").argv


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

    def test_its_port_is_chosen_at_the_start_and_its_address_is_the_loopback(self) -> None:
        """It appears both as the address and as an argument."""
        other = {"command": ["serve", "{port}"]}  # what looks like its placeholder is the user's own elsewhere
        plan = planned({**SPEC, **other, "sidecars": {"s": other}})
        assert of().argv[3:] == ("--logdir", "logs/", "--host", "127.0.0.1", "--port", "{port}")
        for port in ("auto", "6006", "6007"):
            plan = attempts.resolve(plan, {} if port == "auto" else {NAME: int(port)})
            assert command_of(plan)[-2:] == ("--port", port)
            assert str(plan.find(NAME).address) == f"localhost:{port}"
        shown = [placeholders.shown(plan).find(task).argv[-1] for task in ("worker:0", "s", NAME)]
        assert shown == ["{port}", "{port}", "6007"]
        assert serialize.from_json(json.loads(json.dumps(serialize.as_json(plan)))) == plan

    @pytest.mark.parametrize("port", ["auto", "6007"])
    def test_one_that_was_recorded_before_it_had_a_placeholder_is_read(self, port: str) -> None:
        """The port was its last argument; also where it is on another host after a move."""
        spec = {**SPEC, "cluster": {"worker": ["a", "b"]}, "spares": ["c"]}
        plan, now = planned(spec), serialize.as_json(planned(spec))
        recorded = json.loads(json.dumps(now))
        for process in [*recorded["sidecars"], *(task for kind in recorded["variants"] for task in kind["tasks"])]:
            del process["own_port"]
            if process["task"] == NAME:
                process["argv"][-1] = port
        assert recorded != now
        assert serialize.from_json(recorded) == plan


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
    """Return a job whose tasks run and whose TensorBoard has its port and is starting."""
    plan = clustered({"worker": 1}, **{"tensorboard": "logs/", "restart": AT_ONCE, **fields})
    history = History(plan)
    history.happens(HostJoined(HERE), PortsHeld(HERE, {NAME: 6006}), PortsHeld(HERE, {"worker:0": 10000}))
    return history.happens(TaskStarted(HERE, "worker:0", 0, 1, 0.0), PortOpened(HERE, "worker:0", 0))


def listening(**fields: Any) -> History:
    """Return that job, with TensorBoard listening."""
    return begun(**fields).happens(TaskStarted(HERE, NAME, 0, 2, 0.0), PortOpened(HERE, NAME, 0))


def shown_of(history: History) -> Status:
    return status(history.job, StatusInputs(0, "logs", True, 0))


class TestBesideAJob:
    """The job never waits for TensorBoard, and TensorBoard never fails the job."""

    def test_the_job_starts_without_it(self) -> None:
        """Its usual port is asked for apart; it starts as soon as that is held."""
        history = History(clustered({"worker": 1}, tensorboard="logs/")).happens(HostJoined(HERE))
        assert history.actions == [HoldPorts(HERE, {"worker:0": 0}), HoldPorts(HERE, {NAME: 6006}, exclusive=True)]
        assert history.happens(PortsHeld(HERE, {"worker:0": 10000})).actions == [StartTask(HERE, "worker:0", 0)]
        assert history.happens(PortsHeld(HERE, {NAME: 12345})).actions == [StartTask(HERE, NAME, 0)]
        assert command_of(history.job.plan)[-1] == "12345"

    @pytest.mark.parametrize("strategy", ["mirrored", "none"])
    def test_it_has_a_port_where_the_tasks_have_none(self, strategy: str) -> None:
        """A strategy without a cluster holds no ports."""
        history = History(clustered({"worker": 1}, tensorboard="logs/", strategy=strategy)).happens(HostJoined(HERE))
        history.happens(PortsHeld(HERE, {"worker:0": 1} if strategy == "none" else {}), PortsHeld(HERE, {NAME: 6006}))
        assert history.job.tasks[NAME].phase is TaskPhase.STARTING

    def test_after_an_end_it_gets_another_port(self) -> None:
        """A conflict on the previous port may be why it failed."""
        history = listening().ends(NAME, 255)
        assert history.actions == [HoldPorts(HERE, {NAME: 6006}, exclusive=True)]
        assert NAME not in history.job.ports
        assert shown_of(history).tensorboard is None
        history.happens(PortsHeld(HERE, {NAME: 7000}))
        assert history.actions == [StartTask(HERE, NAME, 1)]
        assert command_of(history.job.plan)[-1] == "7000"
        history.happens(TaskStarted(HERE, NAME, 1, 3, 0.0), PortOpened(HERE, NAME, 1))
        shown = shown_of(history)
        assert shown.tensorboard is not None
        assert shown.tensorboard.url == "http://localhost:7000/"
        assert [task.address for task in shown.tasks if task.task == NAME] == ["localhost:7000"]

    def test_it_lives_through_a_restart_of_the_gang(self) -> None:
        """Its port is requested twice then; a second answer does not move it."""
        history = listening().happens(PortsHeld(HERE, {NAME: 7000})).ends("worker:0", None, 9)
        assert history.actions[1:] == [HoldPorts(HERE, {"worker:0": 0})]
        history.happens(PortsHeld(HERE, {"worker:0": 10001}), PortsRefused(HERE, {NAME: "busy"}))
        assert (history.job.phase, history.job.tasks[NAME].is_alive) == (Phase.RUNNING, True)
        assert (command_of(history.job.plan)[-1], history.job.ports[NAME]) == ("6006", 6006)

    def test_any_sidecar_may_have_a_port_of_its_own(self) -> None:
        """Each gets one, is started when its host holds it, and gives it back when it ends."""
        plan = clustered({"worker": 1}, tensorboard="logs/", restart=AT_ONCE)
        other = plan.find(NAME)._replace(task="viewer", own_port=7777)
        history = History(plan._replace(sidecars=(*plan.sidecars, other))).happens(HostJoined(HERE))
        wanted = HoldPorts(HERE, {"viewer": 7777}, exclusive=True)
        assert history.actions[1:] == [HoldPorts(HERE, {NAME: 6006}, exclusive=True), wanted]
        history.happens(PortsHeld(HERE, {"worker:0": 1}), PortsRefused(HERE, {NAME: "none is free"}))
        assert history.job.phase is Phase.RUNNING, "it is done without the one that got none"
        assert history.happens(PortsHeld(HERE, {"viewer": 7778})).actions == [StartTask(HERE, "viewer", 0)]
        history.happens(TaskStarted(HERE, "worker:0", 0, 1, 0.0), TaskStarted(HERE, "viewer", 0, 2, 0.0))
        assert history.ends("viewer", 1).actions == [wanted]
        history.ends("worker:0")
        assert (history.job.phase, history.job.exit_code) == (Phase.ENDED, 0)


def test_its_address_is_told_once() -> None:
    history = begun(restart={"max": 0}).happens(TaskStarted(HERE, NAME, 0, 2, 0.0))
    opened = PortOpened(HERE, NAME, 0)
    before, after, logs = history.job, history.happens(opened).job, Logs("/logs", lambda *_: [])
    assert messages_about(before, opened, after, history.now, logs) == ["TensorBoard: http://localhost:6006/"]
    assert messages_about(after, opened, after, history.now, logs) == []
