"""Hosts try to reach each other before the first start: what is requested, and what follows."""

from __future__ import annotations

import pytest

from support.job_history import History, Willing
from support.specs import clustered
from tflaunch.core.actions import ProbePeers, StartTask
from tflaunch.core.events import HostJoined, NamesResolved, PeersProbed, PortsHeld, TaskExited, TaskGone
from tflaunch.core.job_state import Phase

pytestmark = pytest.mark.unit

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


def test_each_host_tries_the_tasks_of_the_others() -> None:
    """On their real addresses; it listens on the addresses of its own tasks."""
    history = prepared(FAR)
    assert history.actions == [
        ProbePeers("a", {"worker:0": 2222}, {"worker:1": ("b", 2222), "worker:2": ("b", 2223)}),
        ProbePeers("b", {"worker:1": 2222, "worker:2": 2223}, {"worker:0": ("a", 2222)}),
    ]
    assert history.job.phase is Phase.PREPARING


def test_the_tasks_start_when_all_have_reached_all() -> None:
    history = prepared(FAR).happens(PeersProbed("a", {}))
    assert not history.actions
    history.happens(PeersProbed("b", {}))
    assert [action.task for action in history.actions if isinstance(action, StartTask)] == [
        "worker:0", "worker:1", "worker:2",
    ]  # fmt: skip


def test_what_is_out_of_reach_is_named_and_nothing_starts() -> None:
    """For every direction, once all have tried; exit code 3."""
    history = prepared(FAR).happens(PeersProbed("a", {"worker:2": "timed out"}))
    assert history.job.phase is Phase.PREPARING
    history.happens(PeersProbed("b", {"worker:0": "connection refused"}))
    job = history.job
    assert (job.phase, job.exit_code) == (Phase.ENDED, 3)
    assert job.culprit is not None
    assert job.culprit.message.splitlines()[:2] == [
        "a cannot reach worker:2 at b:2223: timed out",
        "b cannot reach worker:0 at a:2222: connection refused",
    ]
    assert "hosts.X.address" in job.culprit.message


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
    history.happens(TaskExited("a", "worker:0", 0, 1, None, history.now), TaskGone("a", "worker:0", 0))
    assert history.job.attempt == 1
    assert history.job.phase is Phase.RUNNING
    assert not [action for action in history.seen if isinstance(action, ProbePeers)]
