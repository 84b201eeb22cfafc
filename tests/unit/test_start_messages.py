"""Messages when tasks start: GPUs and versions that do not match the spec."""

from __future__ import annotations

import pytest

from support.specs import clustered
from tflaunch.core import step
from tflaunch.core.events import Event, HostJoined, NamesResolved, PortsHeld, TaskStarted
from tflaunch.explain.messages import Logs, messages_about

pytestmark = pytest.mark.unit

HOSTS = {"worker": ["a", "b"]}


def said(*starts: TaskStarted, **fields: object) -> list[str]:
    """Return the warnings when tasks of a job on two hosts start."""
    plan = clustered(HOSTS, **fields)._replace(preflight=False)
    job, lines = step.begin_job("run", plan, 0.0), []
    before: list[Event] = [HostJoined("a"), HostJoined("b")]
    before += [NamesResolved("a", {"b": "10.0.0.2"}), NamesResolved("b", {"a": "10.0.0.1"})]
    before += [PortsHeld("a", {"worker:0": 2222}), PortsHeld("b", {"worker:1": 2222})]
    for event in (*before, *starts):
        after, _ = step.step(job, event, 0.0)
        lines += messages_about(job, event, after, 0.0, Logs("logs", lambda _task, _lines: []))
        job = after
    return [line for line in lines if line.startswith("warning")]


def started(host: str, task: str, **facts: object) -> TaskStarted:
    """Return the start of a task on a host with these facts."""
    return TaskStarted(host, task, 0, 7, 0.0, **facts)  # type: ignore[arg-type]


def test_different_versions_of_tensorflow_are_named_with_their_hosts() -> None:
    """Once, when the second version is found."""
    lines = said(started("a", "worker:0", tensorflow="2.16"), started("b", "worker:1", tensorflow="2.21"))
    assert lines == ["warning: TensorFlow differs: 2.16 on a; 2.21 on b; install the same version everywhere"]


@pytest.mark.parametrize("second", ["2.16", ""])
def test_the_same_version_or_an_unknown_one_is_not_mentioned(second: str) -> None:
    """A program other than Python has none."""
    assert said(started("a", "worker:0", tensorflow="2.16"), started("b", "worker:1", tensorflow=second)) == []


def test_gpus_that_are_not_there_are_said() -> None:
    """TensorFlow would train on the CPU without a message."""
    starts = started("a", "worker:0", gpus=2), started("b", "worker:1", gpus=0)
    lines = said(*starts, roles={"worker": {"gpus": 2}})
    assert lines == ["warning: b has 0 GPUs, and its tasks are given 2: they train on the CPU"]
    assert said(*starts) == []


def test_nothing_is_said_of_gpus_that_cannot_be_counted() -> None:
    """The host has a driver other than NVIDIA's."""
    assert said(started("a", "worker:0"), started("b", "worker:1"), roles={"worker": {"gpus": 2}}) == []
