"""Messages when tasks start: GPUs and versions that do not match the spec."""

from __future__ import annotations

import pytest

from support.specs import clustered
from tflaunch.core import step
from tflaunch.core.events import Event, HostJoined, NamesResolved, PortsHeld, TaskStarted
from tflaunch.core.job_state import Job
from tflaunch.errors import EXIT_PREFLIGHT
from tflaunch.explain.messages import Logs, messages_about

pytestmark = pytest.mark.unit

HOSTS = {"worker": ["a", "b"]}


def said(*starts: TaskStarted, **fields: object) -> list[str]:
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
    return TaskStarted(host, task, 0, 7, 0.0, **facts)  # type: ignore[arg-type]


def test_different_versions_of_tensorflow_are_named_with_their_hosts() -> None:
    lines = said(started("a", "worker:0", tensorflow="2.16"), started("b", "worker:1", tensorflow="2.21"))
    assert lines == ["warning: TensorFlow differs: 2.16 on a; 2.21 on b; install the same version everywhere"]


@pytest.mark.parametrize("second", ["2.16", ""])
def test_the_same_version_or_an_unknown_one_is_not_mentioned(second: str) -> None:
    """A program other than Python has none."""
    assert said(started("a", "worker:0", tensorflow="2.16"), started("b", "worker:1", tensorflow=second)) == []


def joined(gpus: int | None, **fields: object) -> tuple[Job, list[str]]:
    plan = clustered({"worker": ["a:1", "a:2"]}, **fields)
    before, event = step.begin_job("run", plan, 0.0), HostJoined("a", gpus=gpus)
    after, _ = step.step(before, event, 1.0)
    return after, messages_about(before, event, after, 1.0, Logs("logs", lambda _task, _lines: []))


def test_gpus_that_are_not_there_are_a_refusal() -> None:
    """TensorFlow would train on the CPU, or the cluster would fail with a riddle: nothing is started."""
    job, _ = joined(1, roles={"worker": {"gpus": 1}})
    assert job.exit_code == EXIT_PREFLIGHT
    assert job.culprit is not None
    assert job.culprit.message == "a has 1 GPU, and its tasks are assigned 2: correct `gpus` in roles or hosts"


@pytest.mark.parametrize("gpus", [None, 2])
def test_gpus_that_are_enough_or_cannot_be_counted_are_not_refused(gpus: int | None) -> None:
    """The host may have a driver other than NVIDIA's."""
    job, lines = joined(gpus, roles={"worker": {"gpus": 1}})
    assert (job.culprit, lines) == (None, [])


def test_a_host_without_a_gpu_is_named_and_not_refused() -> None:
    """A job is tried out on a machine without any."""
    job, lines = joined(0, roles={"worker": {"gpus": 1}})
    assert job.culprit is None
    assert lines == ["warning: a has no GPU, and its tasks are assigned 2: they train on the CPU"]


def test_tasks_that_share_gpus_are_named_before_the_start() -> None:
    """With what NCCL cannot do; not where there is no GPU, or each task names its own."""
    _, (line,) = joined(1)
    assert line.startswith(
        "warning: worker:0, worker:1 share 1 GPU of a, and its memory; NCCL takes one task for a GPU"
    )
    assert joined(0)[1] == []
    assert joined(1, env={"CUDA_VISIBLE_DEVICES": "-1"})[1] == []
