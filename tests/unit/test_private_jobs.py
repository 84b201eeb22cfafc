"""Jobs in a private network: a host that has none, tasks that have no way out, and journals of earlier versions."""

from __future__ import annotations

import pytest

from support.job_history import HERE, History
from support.specs import clustered
from tflaunch.core import replay
from tflaunch.core.event_records import from_record
from tflaunch.core.events import HostJoined, NetworkRefused, OutsiderRefused, PortsHeld
from tflaunch.core.job_state import Phase
from tflaunch.explain.messages import Logs, messages_about
from tflaunch.plan import serialize

pytestmark = pytest.mark.unit

CLUSTER = {"worker": 2}


def history() -> History:
    return History(clustered(CLUSTER, network="private"))


def said(of: History, event: HostJoined) -> list[str]:
    before = of.job
    of.happens(event)
    return messages_about(before, event, of.job, of.now, Logs("logs", lambda _task, _lines: []))


def test_a_host_without_private_networks_ends_the_job() -> None:
    job = history().happens(HostJoined(HERE), NetworkRefused(HERE, "user.max_user_namespaces is 0")).job
    assert (job.phase, job.exit_code) == (Phase.ENDED, 3)
    assert job.culprit is not None
    assert job.culprit.message.splitlines() == [
        '"network": "private" is not possible on localhost: user.max_user_namespaces is 0',
        'allow it there, or write "network": "fenced", which keeps other hosts out but not users of this one',
    ]


def test_a_network_without_a_way_out_is_told_before_the_start() -> None:
    job = history()
    (line,) = said(job, HostJoined(HERE, "", "pasta is not installed there (package passt)"))
    assert line == (
        "warning: tasks have no way out of the private network of localhost: "
        "pasta is not installed there (package passt)"
    )
    assert job.job.phase is Phase.PREPARING
    assert said(history(), HostJoined(HERE)) == []


def test_tasks_of_a_host_meet_on_its_loopback_interface() -> None:
    job = history().happens(HostJoined(HERE), PortsHeld(HERE, {"worker:0": 1001, "worker:1": 1002})).job
    assert [str(task.address) for task in job.plan.tasks] == ["localhost:1001", "localhost:1002"]


def test_a_journal_of_an_earlier_version_can_be_read() -> None:
    """Its private network may have had several hosts, whose relays said why they had refused a connection."""
    record = {"kind": "outsider_refused", "host": "a", "task": "worker:0", "source": "192.0.2.1", "reason": "stale"}
    assert from_record(record) == OutsiderRefused("a", "worker:0", "192.0.2.1")
    data = serialize.as_json(clustered({"worker": ["a", "b"]}))
    for number, task in enumerate(data["tasks"], 1):
        task["address"] = f"127.90.0.{number}:auto"
    about = {"run": "run", "plan": {**data, "network": "private"}}
    first = {"seq": 1, "now": 1.0, "kind": "plan", **about}
    joined = [{"seq": 2 + n, "now": 2.0, "kind": "host_joined", "host": host} for n, host in enumerate("ab")]
    held = [
        {"seq": 4 + n, "now": 3.0, "kind": "ports_held", "host": host, "ports": {f"worker:{n}": 1001}}
        for n, host in enumerate("ab")
    ]
    refused = {"seq": 6, "now": 4.0, **record}
    job = replay.replay_job([first, *joined, *held, refused])
    assert job.port_fence.refused == ("192.0.2.1",)
    assert [str(task.address) for task in job.original.tasks] == ["127.90.0.1:auto", "127.90.0.2:auto"]
