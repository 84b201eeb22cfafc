"""The order of the local queue, what its runs take of machines, and how all commands see them."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from fuzz.recorded_run import record
from support.specs import MACHINE, planned
from tflaunch.client import follow, run_list, runs
from tflaunch.client.observer import Observer
from tflaunch.client.run_location import RunLocation, locate_run
from tflaunch.errors import TflaunchError
from tflaunch.features.queue import queue_order, tickets
from tflaunch.features.queue.location import QueuedRun
from tflaunch.features.queue.queue_order import Obstacle, Share, decide
from tflaunch.features.queue.tickets import Refusal
from tflaunch.plan import placeholders, serialize
from tflaunch.plan.model import HostPlan, Plan
from tflaunch.store import run_dir
from tflaunch.store.run_dir import RunDirectory

ALL, CPU = Share(None), Share(0)
ONE_GPU = {"worker": {"gpus": 1}}


def gpus(number: int, *devices: str) -> Share:
    return Share(number, devices or ("0", "1", "2", "3"))


def begins(waiting: dict[str, dict[str, Share]], holders: dict[str, dict[str, Share]], slots: int = 1) -> list[str]:
    verdicts = decide(waiting, holders, slots)
    return [run for run, verdict in zip(waiting, verdicts, strict=True) if not verdict.obstacles]


def test_one_run_on_a_host() -> None:
    waiting = {"a": {"h": ALL}, "b": {"h": CPU}, "c": {"h": CPU}}
    assert begins(waiting, {}) == ["a"]
    assert begins(waiting, {"x": {"h": CPU}}) == []
    assert begins(waiting, {"x": {"other": ALL}}) == ["a"]
    assert begins(waiting, {}, slots=2) == ["a", "b"]
    assert begins(waiting, {"x": {"h": CPU}}, slots=3) == ["a", "b"]


def test_runs_with_gpus_share_a_host() -> None:
    """As long as it has enough, and each gets others; one that needs none does not matter."""
    waiting = {"a": {"h": gpus(2)}, "b": {"h": gpus(1)}, "c": {"h": gpus(1)}, "d": {"h": gpus(1)}}
    found = list(decide(waiting, {"x": {"h": CPU}}, 1))
    assert [dict(verdict.devices) for verdict in found] == [{"h": ("0", "1")}, {"h": ("2",)}, {"h": ("3",)}, {}]
    assert found[3].obstacles == (Obstacle("h", ("a", "b", "c"), False),)
    assert begins({"a": {"h": gpus(1)}, "b": {"h": CPU}, "c": {"h": ALL}}, {}) == ["a", "b"]


def test_a_run_that_sees_all_gpus() -> None:
    """Neither begins beside one that has some, nor the other way round."""
    assert begins({"a": {"h": ALL}}, {"x": {"h": gpus(1, "0")}}, slots=9) == []
    assert begins({"a": {"h": gpus(1)}}, {"x": {"h": ALL}}, slots=9) == []
    assert begins({"a": {"h": gpus(1)}}, {"x": {"h": gpus(3, "0", "1", "3")}}) == ["a"]
    (verdict,) = decide({"a": {"h": CPU}}, {"x": None}, 5)
    assert verdict.obstacles == (Obstacle("h", ("x",), False),), "nothing is known of x yet"


def test_a_small_run_does_not_overtake_a_large_one() -> None:
    waiting = {"large": {"h": gpus(4), "i": gpus(4)}, "small": {"h": gpus(1)}, "elsewhere": {"j": gpus(1)}}
    holders = {"x": {"h": gpus(1, "0")}}
    assert begins(waiting, holders) == ["elsewhere"]
    small = list(decide(waiting, holders, 1))[1]
    assert small.obstacles == (Obstacle("h", ("large",), True),)
    assert begins(waiting, {}) == ["large", "elsewhere"]


# ---- what a plan takes


def plan_of(environ: dict[str, str] | None = None, **fields: Any) -> Plan:
    data = {"cluster": {"worker": 2}, "strategy": "none", "command": ["train"], **fields}
    return planned(data, MACHINE._replace(environ=environ or {}))


@pytest.mark.parametrize(
    ("fields", "here", "wanted"),
    [
        ({}, 0, {"localhost": CPU}),
        ({}, 4, {"localhost": ALL}),
        ({"roles": ONE_GPU}, 4, {"localhost": gpus(2)}),
        ({"roles": ONE_GPU}, 1, {"localhost": ALL}),
        ({"roles": {"worker": {"gpus": 0}}}, 4, {"localhost": CPU}),
        ({"hosts": {"localhost": {"gpus": 2}}}, 0, {"localhost": gpus(2, "0", "1")}),
        ({"env": {"CUDA_VISIBLE_DEVICES": "3"}}, 4, {"localhost": gpus(1, "3")}),
        ({"cluster": {"worker": ["a", "b"]}}, 0, {"a": ALL, "b": ALL}),
        ({"cluster": {"worker": ["a"]}, "roles": {"worker": {"gpus": 2}}}, 0, {"a": ALL}),
        ({"cluster": {"worker": ["a"]}, "roles": ONE_GPU, "hosts": {"a": {"gpus": 4}}}, 0, {"a": gpus(1)}),
        ({"sidecars": {"side": {"command": ["watch"], "host": "localhost"}}}, 0, {"localhost": CPU}),
    ],
)
def test_what_a_plan_needs(fields: dict[str, Any], here: int | None, wanted: dict[str, Share]) -> None:
    assert queue_order.wanted_shares(plan_of(**fields), here) == wanted


@pytest.mark.parametrize(
    ("host", "machine"),
    [
        (HostPlan("here", is_local=True), "localhost"),
        (HostPlan("Host1", is_local=False), "host1"),
        (HostPlan("w1", is_local=False, ssh="ann@Host1:22"), "host1"),
        (HostPlan("pod", is_local=False, engine="kubernetes"), None),
        (HostPlan("node", is_local=False, engine="slurm:1", inherits=True), None),
    ],
)
def test_the_machine_of_a_host(host: HostPlan, machine: str | None) -> None:
    """Is the one that it is reached by; a scheduler's is not ours."""
    assert queue_order.machine_of(host) == machine


def test_other_gpus_are_given() -> None:
    """To tasks whose GPUs tflaunch has chosen; what it holds then is what it was given."""
    plan = plan_of(roles=ONE_GPU, hosts={"localhost": {"gpus": 4}})
    assert [task.env["CUDA_VISIBLE_DEVICES"] for task in plan.tasks] == ["0", "1"]
    given = queue_order.with_devices(plan, {"localhost": ("1", "3")})
    assert [task.env["CUDA_VISIBLE_DEVICES"] for task in given.tasks] == ["1", "3"]
    assert queue_order.held_shares(given, 4) == {"localhost": Share(2, ("1", "3"))}
    chosen = plan_of(env={"CUDA_VISIBLE_DEVICES": "2"})
    assert queue_order.with_devices(chosen, {"localhost": ("0",)}) == chosen


def test_gpus_of_the_environment() -> None:
    """Are named in the plan, so that other runs know of them."""
    plan = queue_order.with_inherited_devices(plan_of(), "1")
    assert queue_order.wanted_shares(plan, 4) == {"localhost": gpus(1, "1")}
    assert queue_order.with_inherited_devices(plan_of(), None) == plan_of()


# ---- a matrix


def test_values_of_a_matrix() -> None:
    """Replace their placeholders, and are recorded; literal braces are left for the start."""
    plan = plan_of(command=["train", "--lr={matrix.lr}", "{{matrix.lr}}", "{task.index}"], env={"B": "{matrix.batch}"})
    assert placeholders.matrix_names(plan) == ["lr", "batch"]
    filled = placeholders.with_matrix(plan, {"lr": "0.1", "batch": "32"})
    assert filled.tasks[1].argv == ("train", "--lr=0.1", "{{matrix.lr}}", "{task.index}")
    assert filled.tasks[1].env["B"] == "32"
    assert placeholders.fill(filled.tasks[1], filled, "run", "0").argv == ("train", "--lr=0.1", "{matrix.lr}", "1")
    assert placeholders.matrix_names(filled) == []
    assert serialize.from_json(serialize.as_json(filled)).matrix == {"lr": "0.1", "batch": "32"}


@pytest.mark.parametrize("job", ["mnist", "a-lr0.1", "a-l", "x" * 55, "x" * 61, "x" * 63])
def test_the_job_of_a_matrix_is_found_in_the_names_of_its_runs(job: str) -> None:
    """Also where the name was too long for the values, and for a run that has another name."""
    values = {"lr": "0.1", "path": "a/b"}
    filled = placeholders.with_matrix(plan_of()._replace(name=job), values)
    assert filled.name == f"{job}-lr0.1-patha_b"[:63].rstrip("-")
    assert placeholders.name_without_values(filled.name, values) == job
    assert placeholders.name_without_values(job, {}) == job
    assert placeholders.name_without_values("other-l", values) == "other-l"


# ---- how commands see a run of the queue


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of a run that has not begun."""
    monkeypatch.setenv("TFLAUNCH_HOME", str(tmp_path))
    return RunDirectory("train").path


@pytest.fixture
def ticket(path: Path) -> Iterator[tuple[Path, int]]:
    """The ticket of the run, and its lock, which is that of this process."""
    issued, lock = tickets.issue([(path, {}, {"lr": "0.1"})])
    yield issued, lock
    with suppress(OSError):
        os.close(lock)


def test_a_run_is_shown_by_its_mark_until_it_has_left_the_queue(path: Path, ticket: tuple[Path, int]) -> None:
    location = locate_run(path)
    assert type(location) is QueuedRun
    entry = run_list.entry_of(path)
    assert (entry.state, entry.matrix) == ("queued", {"lr": "0.1"})
    assert (location.is_live(), location.begins_after_others()) == (False, True)
    with pytest.raises(TflaunchError, match="has not begun; `tflaunch queue` says what it waits for"):
        Observer(path)
    with pytest.raises(TflaunchError, match="`tflaunch queue` says"):
        runs.plan_of(path)
    lock = run_dir.take_lock(path)
    assert tickets.claim(path, tickets.BEGINS)
    assert (run_list.entry_of(path).state, tickets.read_waiting()) == ("queued", [])
    os.close(lock)
    tickets.leave(path)
    assert type(locate_run(path)) is RunLocation


@pytest.mark.parametrize(("code", "state"), [(3, "failed"), (143, "stopped")])
def test_a_run_that_could_not_begin_says_why(path: Path, code: int, state: str) -> None:
    tickets.refuse(path, Refusal("no room", code))
    location = locate_run(path)
    assert type(location) is QueuedRun
    entry = run_list.entry_of(path)
    assert (entry.state, entry.exit_code) == (state, code)
    assert not location.begins_after_others()
    with pytest.raises(TflaunchError, match="could not begin: no room") as refused:
        follow.watch_to_end(location, print, lambda _: 0)
    assert refused.value.exit_code == code
    said: list[str] = []
    assert location.stop_run(None, said.append, lambda: 9) == 0
    assert said == [f"run {path.name} could not begin: no room"]


def test_a_run_that_is_stopped_before_it_has_begun_leaves_nothing(path: Path, ticket: tuple[Path, int]) -> None:
    location, said = locate_run(path), list[str]()
    assert location.stop_run(None, said.append, lambda: 9) == 0
    assert (said, path.exists(), tickets.read_waiting()) == ([f"took {path.name} out of the queue"], False, [])
    assert not tickets.claim(path, tickets.BEGINS)
    with pytest.raises(TflaunchError, match="was taken out of the queue") as withdrawn:
        follow.watch_to_end(location, print, lambda _: 0)
    assert withdrawn.value.exit_code == 143


@pytest.mark.parametrize("claimed", ["", tickets.BEGINS], ids=["waits", "begins"])
def test_a_run_whose_process_was_killed_is_lost(path: Path, ticket: tuple[Path, int], claimed: str) -> None:
    """No other run waits for it, and it can be taken out."""
    if claimed:
        assert tickets.claim(path, claimed)
    os.close(ticket[1])
    assert (tickets.read_waiting(), ticket[0].exists()) == ([], False)
    location = locate_run(path)
    assert run_list.entry_of(path).state == "lost"
    with pytest.raises(TflaunchError, match="was killed while it waited") as lost:
        follow.watch_to_end(location, print, lambda _: 0)
    assert lost.value.exit_code == 125
    assert location.stop_run(None, print, lambda: 9) == 0
    assert path.exists() is bool(claimed)


def test_a_run_that_has_begun_is_stopped_as_one_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TFLAUNCH_HOME", str(tmp_path))
    path = record(has_ended=True)
    (path / tickets.BEGINS).touch()  # its supervisor was killed before it could remove it
    location = locate_run(path)
    assert (type(location), location.describe_wait()) == (QueuedRun, None)
    assert location.stop_run(None, print, lambda: 9) == 9
