"""What a plan says of preloading: which tasks are forked, and from what."""

from pathlib import Path
from typing import Any

import pytest

from support.specs import SMALLEST_LOCAL, made, planned
from tflaunch.errors import Problem
from tflaunch.features.preload import warm_servers
from tflaunch.features.preload.preloading import Preloading, find_problems
from tflaunch.plan import serialize


def problem_of(**fields: Any) -> Problem:
    """Return the only problem of a spec with some fields."""
    (problem,) = find_problems(made({**SMALLEST_LOCAL, **fields}), Path())
    return problem


@pytest.mark.parametrize("name", ["", "tensor flow", "a..b", "tf-keras", "1a", "a,b"])
def test_what_is_preloaded_are_modules(name: str) -> None:
    problem = problem_of(preload=["tensorflow.keras", name])
    assert (problem.severity, problem.where) == ("error", "preload[1]")
    assert not [*find_problems(made({**SMALLEST_LOCAL, "preload": ["tensorflow.keras"]}), Path())]


@pytest.mark.parametrize("fields", [{"preload": ["tensorflow"]}, {"warm": "10m"}])
@pytest.mark.parametrize("command", ["sh train.sh", "python -O train.py", "/usr/bin/env python train.py"])
def test_a_command_that_cannot_be_preloaded_is_pointed_out(command: str, fields: dict[str, Any]) -> None:
    warning = problem_of(command=command, **fields)
    assert (warning.severity, warning.where) == ("warning", next(iter(fields)))
    assert "does nothing for 'command'" in warning.message


@pytest.mark.parametrize("fields", [{"preload": ["json"]}, {"warm": "10m"}])
def test_nothing_is_preloaded_in_a_private_network(fields: dict[str, Any]) -> None:
    warning = problem_of(network="private", **fields)
    assert (warning.severity, warning.where) == ("warning", next(iter(fields)))
    plan = planned({**SMALLEST_LOCAL, "network": "private", **fields})
    assert {Preloading().prospect(plan, task) for task in plan.tasks} == {None}
    assert {Preloading().order(plan, task, is_first=True)["preload"] for task in plan.tasks} == {()}


def test_a_plan_says_who_will_be_preloaded_as_far_as_is_known() -> None:
    spec = {**SMALLEST_LOCAL, "cluster": {"worker": 1, "evaluator": 1}, "preload": ["tensorflow", "tf_keras"]}
    roles = {"evaluator": {"command": "sh evaluate.sh"}}
    plan = planned({**spec, "roles": roles, "sidecars": {"board": {"command": "python board.py"}}})
    assert plan.preload == ("tensorflow", "tf_keras")
    assert [Preloading().prospect(plan, task) for task in plan.processes()] == [
        "tensorflow,tf_keras",
        "no: its command does not start with a Python",
        None,
    ]
    assert Preloading().prospect(planned({**SMALLEST_LOCAL, "preload": []}), plan.tasks[0]) is None


def test_what_warm_servers_are_for() -> None:
    """The first of a host's tasks, TensorFlow by default; not in containers, and not for commands of no Python."""
    spec = {**SMALLEST_LOCAL, "cluster": {"worker": 2}, "warm": "10m", "command": ["python", "train.py"]}
    plan = planned(spec)
    assert (plan.preload, plan.warm) == (("tensorflow",), 600.0)
    recipe = Preloading().recipe(plan, "localhost")
    assert recipe is not None
    orders = [Preloading().order(plan, task, is_first=True) for task in plan.tasks]
    assert orders == [{"preload": ("tensorflow",), "search": None, "warm": {"recipe": recipe, "idle": 600.0}}] * 2
    change: dict[str, Any]
    for change in ({"preload": ["json"]}, {"env": {"A": "1"}}, {"command": ["python3", "train.py"]}):
        assert Preloading().recipe(planned({**spec, **change}), "localhost") not in (None, recipe)
    for change in ({"name": "other"}, {"command": ["python", "eval.py"]}, {"env": {"TFLAUNCH_X": "1"}}):
        assert Preloading().recipe(planned({**spec, **change}), "localhost") == recipe
    buffered = planned({**spec, "command": ["python", "-u", "train.py"]})
    importing = warm_servers.only_importing(buffered._replace(collect=("*.h5",)))
    assert (importing.collect, importing.notify) == ((), None)
    assert [task.argv for task in importing.tasks] == [("python", "-u", "-c", "pass")]
    assert Preloading().recipe(importing, "localhost") == recipe
    called = plan.with_function(Path("/f"), ["/here", "/lib"])
    assert serialize.from_json(serialize.as_json(called)) == called
    assert Preloading().order(called, called.tasks[0], is_first=True)["search"] == ("/here", "/lib")
    assert Preloading().recipe(called, "localhost") not in (None, recipe)
    for off in ({"warm": 0}, {"command": ["sh", "train.sh"]}):
        assert Preloading().recipe(planned({**spec, **off}), "localhost") is None
    assert planned({**spec, "warm": 0}).preload == ("auto",)
    assert planned({**spec, "preload": []}).preload == ()
    there = {**spec, "cluster": {"worker": ["h1:22", "h2:22"]}, "hosts": {"h1": {"docker": "c"}, "h2": {"ssh": "u@h2"}}}
    known = [Preloading().recipe(planned(there), host) for host in ("h1", "h2")]
    assert known[0] is None
    assert known[1] not in (None, recipe)


@pytest.mark.parametrize("wrong", [[], {}, {"pid": "1"}, {"idle_left": -1.0}, {"modules": [1]}, {"memory_bytes": 2.5}])
def test_what_a_host_says_about_its_warm_servers_is_checked(wrong: Any) -> None:
    known = {"pid": 1, "python": "\x1b[1mpython", "modules": ["json"], "memory_bytes": 2, "uses": 3, "idle_left": 4.5}
    assert warm_servers.read_server("h1", known).python == r"\x1b[1mpython"
    with pytest.raises(ValueError, match=r"'\w+' must be|an object"):
        warm_servers.read_server("h1", {**known, **wrong} if wrong else wrong)


ALIKE = {"cluster": {"worker": 2}, "command": "python train.py"}
ALSO_ONE = {"worker": 1, "evaluator": 1}
UNASKED: list[tuple[dict[str, Any], int]] = [
    ({}, 2),
    ({"preload": "auto"}, 2),
    ({"preload": []}, 0),
    ({"command": "python -u -m train"}, 2),
    ({"command": "sh train.sh"}, 0),
    ({"command": "./train.py"}, 0),
    ({"command": "uv run python train.py"}, 0),
    ({"command": "nice python train.py"}, 0),
    ({"command": "python -O train.py"}, 0),
    ({"command": "python train.py --port {task.index}"}, 2),
    ({"network": "private"}, 0),
    ({"env": {"DATA": "/d"}}, 2),
    ({"env": {"DATA": "/d/{task.index}"}}, 0),
    ({"cluster": {"worker": 1}}, 0),
    ({"cluster": ALSO_ONE}, 2),
    ({"cluster": ALSO_ONE, "roles": {"evaluator": {"command": "python -m eval"}}}, 2),
    ({"cluster": ALSO_ONE, "roles": {"evaluator": {"command": "python3 eval.py"}}}, 0),
    ({"cluster": ALSO_ONE, "roles": {"evaluator": {"env": {"A": "1"}}}}, 0),
    ({"cluster": ALSO_ONE, "roles": {"evaluator": {"workdir": "/"}}}, 0),
    ({"cluster": ALSO_ONE, "roles": {"evaluator": {"env": {"CUDA_VISIBLE_DEVICES": ""}}}}, 2),
    ({"cluster": {"worker": ["h1", "h2"]}}, 0),
    ({"cluster": {"worker": ["h1", "h1", "h2"]}}, 2),
    ({"cluster": {"worker": 1}, "sidecars": {"board": {"command": "python board.py"}}}, 0),
]


@pytest.mark.parametrize(("fields", "forked"), UNASKED)
def test_unasked_only_tasks_that_share_an_import_are_forked(fields: dict[str, Any], forked: int) -> None:
    """Two of a host at least, with the same interpreter, directory and environment."""
    plan = planned({**ALIKE, **fields})
    prospects = [Preloading().prospect(plan, task) for task in plan.processes()]
    assert (prospects.count("auto"), prospects.count(None)) == (forked, len(prospects) - forked)
    ordered = [Preloading().order(plan, task, is_first=True)["preload"] for task in plan.processes()]
    assert ordered == [("auto",) if prospect else () for prospect in prospects]


def test_from_the_second_attempt_on_one_task_is_enough() -> None:
    """What is imported for it makes the next start fast."""
    plan = planned({**ALIKE, "cluster": {"worker": ["h1", "h2"]}})
    assert {Preloading().order(plan, task, is_first=False)["preload"] for task in plan.tasks} == {("auto",)}
