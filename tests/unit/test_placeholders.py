"""Placeholders in commands, environments and directories; placement of tasks on the hosts that were found."""

from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from support.specs import DIRECTORY, MACHINE, made, planned
from tflaunch.clusterspec import load, templates
from tflaunch.clusterspec.model import Spec
from tflaunch.plan import attempts, lint, placeholders, placement, planner, serialize
from tflaunch.plan.model import TaskPlan
from tflaunch_worker import host_vars

TRAIN = ["python", "train.py"]


def filled(text: str, task: str = "worker:1", **fields: Any) -> str:
    return started(task, command=[*TRAIN, text], **fields).argv[2]


def started(task: str = "worker:1", **fields: Any) -> TaskPlan:
    cluster = {"chief": ["a:1"], "worker": ["b:1", "c"], "ps": ["d:1"]}
    plan = planned({"cluster": cluster, "command": TRAIN, **fields})
    plan = attempts.resolve(plan, {"worker:1": 4567})
    return placeholders.fill(plan.find(task), plan, "mine-1f2e", "2")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("--index={task.index}", "--index=1"),
        ("{task.role} {task.name}", "worker worker:1"),
        ("{attempt}", "2"),
        ("{run}", "mine-1f2e"),
        ("{cluster.worker} {cluster.ps} {chief.host}", "b:1,c:4567 d:1 a"),
        ("{task.index}/{task.index}", "1/1"),
    ],
)
def test_a_placeholder_is_filled_in_when_the_task_starts(text: str, value: str):
    assert filled(text) == value
    task = started(env={"RANK": text}, workdir="out/{task.role}-{attempt}")
    assert (task.env["RANK"], task.workdir) == (value, f"{DIRECTORY}/out/worker-2")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{{task.index}}", "{task.index}"),
        ('{"a": {"b": 1}}', '{"a": {"b": 1}}'),
        ("{0:.3f} {epoch:02d}", "{0:.3f} {epoch:02d}"),
        ("${run} ${task.index}", "${run} ${task.index}"),
        ("{task.index!r}", "{task.index!r}"),
        ("{running}", "{running}"),
    ],
)
def test_other_braces_stay(text: str, value: str):
    """JSON, format strings and shell expansions; doubled braces escape a placeholder."""
    assert filled(text) == value


@pytest.mark.parametrize(
    "data",
    [
        "{run}-{{task.index}} ${attempt} {matrix.lr} {task.indx}",
        "a$${b}c ${q} $${host:HOME} ${host:HOME} ${host:CORES/2}",
        "{{{run}}} $$ ${ } {",
    ],
)
def test_data_is_never_a_template(data: str):
    """From the environment, a file, a matrix, or the name of a directory it reaches a task as it was."""
    env = {"A": "${DATA}", "B": templates.quote_in_spec(data)}
    fields = {"cluster": {"worker": 1}, "command": [*TRAIN, "{matrix.lr}"], "env": env}
    spec = load.spec_from_data("spec", fields, {"DATA": data}, Path())
    assert lint.check_spec(spec) == []
    plan = placeholders.with_matrix(planner.make_plan(spec, PurePosixPath("/of", data), MACHINE), {"lr": data})
    task = placeholders.fill(plan.tasks[0], plan, "run-1", "3")
    texts = (task.env["A"], task.env["B"], task.argv[-1], task.workdir)
    expanded = [host_vars.expand(text, {"HOME": "/home/ann", "CORES": "8"}) for text in texts]
    assert expanded == [data, data, data, f"/of/{data}"]


def test_a_sidecar_has_a_name_and_can_use_the_addresses_of_the_cluster():
    """The leader is the first worker where there is no chief, as for TensorFlow."""
    sidecars = {"board": {"command": ["show", "{task.name}", "{task.role}", "{chief.host}"]}}
    assert started("board", sidecars=sidecars).argv[1:] == ("board", "sidecar", "a")
    assert filled("{chief.host}", cluster={"worker": ["b:1", "c:1"]}) == "b"


def test_tensorboard_has_the_directory_and_the_environment_of_the_task_that_leads():
    board = started("tensorboard", tensorboard="logs", workdir="{task.role}-{task.index}", env={"A": "{task.name}"})
    assert (board.workdir, board.env["A"]) == (f"{DIRECTORY}/chief-0", "chief:0")


def test_a_run_keeps_them_for_later_attempts_and_people_see_what_is_known():
    """As in TF_CONFIG, `auto` means what is chosen at the start."""
    plan = planned({"cluster": {"worker": 2}, "command": [*TRAIN, "{task.index}", "{cluster.worker}", "{run}"]})
    assert serialize.from_json(serialize.as_json(plan)) == plan
    assert plan.tasks[0].argv[-1] == "{run}"
    assert placeholders.shown(plan).tasks[1].argv[2:] == ("1", "localhost:auto,localhost:auto", "auto")


def test_variables_of_jax_have_the_ports_of_the_attempt_unless_the_spec_sets_them():
    task = started(strategy="jax", cluster={"worker": ["b:1", "c"]})
    names = ("JOB_ADDRESSES", "NUM_PROCESSES", "PROCESS_ID")
    assert [task.env[f"KERAS_DISTRIBUTION_{name}"] for name in names] == ["b:1,c:4567", "2", "1"]
    assert task.env["TFLAUNCH_SET"].count("KERAS_DISTRIBUTION_") == len(names)
    assert "KERAS_BACKEND" in task.env["TFLAUNCH_SET"]
    task = started(strategy="jax", cluster={"worker": 2}, env={"KERAS_BACKEND": "torch"})
    assert task.env["KERAS_BACKEND"] == "torch"
    assert "KERAS_BACKEND" not in task.env["TFLAUNCH_SET"]


def spec(**fields: Any) -> Spec:
    return made({"cluster": {"worker": 1}, "command": ["x"], **fields})


def hosts(spec: Spec, role: str = "worker") -> list[str]:
    return [address.host for address in spec.cluster[role]]


SPREADS = [(4, "ab", "aabb"), (3, "ab", "aab"), (2, "abcd", "ab"), (2, "aabb", "ab"), (6, "aab", "aaaabb")]


@pytest.mark.parametrize(("tasks", "slots", "expected"), SPREADS)
def test_counted_tasks_are_spread_in_blocks(tasks: int, slots: str, expected: str) -> None:
    """Each host gets one task while hosts outnumber tasks; else tasks go by slots."""
    assert hosts(placement.spread(spec(cluster={"worker": tasks}), slots)) == list(expected)


def test_tasks_that_have_a_host_keep_it() -> None:
    """In the order of roles, whatever the order in the spec."""
    mixed = spec(cluster={"ps": 1, "worker": ["h9", "localhost"], "chief": 1})
    placed = placement.spread(mixed, ["a", "b", "c"])
    assert (hosts(placed, "chief"), hosts(placed), hosts(placed, "ps")) == (["a"], ["h9", "b"], ["c"])
    assert list(placed.cluster) == ["ps", "worker", "chief"]
