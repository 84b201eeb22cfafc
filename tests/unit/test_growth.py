"""The size of a plan, its record and its first steps is linear in the number of tasks, not quadratic."""

from __future__ import annotations

import json
from typing import Any
from unittest.mock import Mock

import pytest

from support.job_history import History
from support.specs import GOOD, SMALLEST, clustered, planned
from tflaunch.core import preflight, replay
from tflaunch.core.actions import StopTask
from tflaunch.core.events import TaskExited
from tflaunch.core.job_state import Phase
from tflaunch.core.task_table import StateTable
from tflaunch.plan import serialize
from tflaunch.plan.attempts import addresses, with_tf_configs
from tflaunch.plan.model import Plan

pytestmark = pytest.mark.unit


def spread(count: int, per_host: int = 1, **fields: Any) -> Plan:
    """Return the plan of this many workers."""
    return clustered({"worker": [f"host{number // per_host:05}x" for number in range(count)]}, **fields)


@pytest.mark.parametrize("data", [SMALLEST, *GOOD.values()], ids=["smallest", *GOOD])
def test_a_record_gives_the_plan_again(data: dict[str, Any]) -> None:
    plan = planned(data)
    for form in (plan, with_tf_configs(plan)):
        assert serialize.from_json(json.loads(json.dumps(serialize.as_json(form)))) == plan
    assert "TF_CONFIG" not in {name for task in serialize.as_json(plan)["tasks"] for name in task["env"]}


def test_a_journal_of_an_earlier_version_gives_the_same_job() -> None:
    plan = clustered({"worker": 2, "evaluator": 1})
    ports = {"worker:0": 1, "worker:1": 2, "evaluator:0": 3}
    joined = {"kind": "host_joined", "now": 1.0, "host": "localhost"}
    held = {"kind": "ports_held", "now": 2.0, "host": "localhost", "ports": ports}
    jobs = []
    for form in (plan, with_tf_configs(plan)):
        first = {"kind": "plan", "run": "r", "now": 0.0, "plan": serialize.as_json(form)}
        jobs.append(replay.replay_job(json.loads(json.dumps([first, joined, held]))))
    assert jobs[0] == jobs[1]
    assert jobs[0].phase is Phase.RUNNING
    assert addresses(jobs[0].plan)["worker"] == ["localhost:1", "localhost:2"]


def test_twice_the_tasks_make_twice_the_record_and_twice_the_questions() -> None:
    """Questions of names and addresses, where there are too many hosts for each to probe all others."""
    sizes = []
    for count in (200, 400):
        plan, hosts = spread(count), [f"host{number:05}x" for number in range(count)]
        asked = sum(len(one.peers) for one in preflight.peers_to_try(plan).values())
        names = sum(map(len, preflight.names_to_find(plan, hosts).values()))
        sizes.append((len(json.dumps(serialize.as_json(plan))), asked, names))
    assert all(large < 2.1 * small for small, large in zip(*sizes, strict=True))


@pytest.mark.parametrize("count", [2, 64, 65, 66, 67, 301])
def test_few_hosts_all_try_all_and_of_many_each_tries_and_is_tried_by_many(count: int) -> None:
    """The first host, which leads, is probed by all; no host probes itself."""
    wanted = preflight.peers_to_try(spread(count))
    tried = [peer for one in wanted.values() for peer in one.peers]
    least = min(preflight.MOST_PEERS, count - 1)
    assert tried.count("worker:0") == count - 1
    assert all(least <= tried.count(f"worker:{number}") <= least + 1 for number in range(1, count))
    assert all(least <= len(one.peers) <= least + 1 for one in wanted.values())
    assert all(not one.peers.keys() & one.ports.keys() for one in wanted.values())
    assert all(f"worker:{(number + 1) % count}" in wanted[f"host{number:05}x"].peers for number in range(count))


def test_hosts_and_processes_are_found_by_name() -> None:
    plan = clustered({"worker": ["a", "b", "a"]}, sidecars={"log": {"command": "x", "host": "b"}})
    assert [process.task for process in plan.on_host("b")] == ["worker:1", "log"]
    assert plan.on_host("c") == ()
    assert not plan.is_local("a")
    assert clustered({"worker": 1}).is_local("localhost")
    smaller = plan._replace(tasks=plan.tasks[1:])
    assert [process.task for process in smaller.on_host("a")] == ["worker:2"]


def test_a_gang_is_stopped_in_one_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """Task states are replaced as often, whatever their number."""
    changes = []
    for workers in (20, 200):
        history = History(clustered({"worker": workers})).start()
        replaced = Mock(side_effect=StateTable.replaced)
        with monkeypatch.context() as patch:
            patch.setattr(StateTable, "replaced", lambda *arguments, mock=replaced: mock(*arguments))
            history.happens(TaskExited("localhost", "worker:3", 0, 1, None, 0.0))
        assert len([action for action in history.actions if isinstance(action, StopTask)]) == workers
        changes.append(replaced.call_count)
    assert changes[0] == changes[1] > 0
