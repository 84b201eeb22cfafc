"""What is said when tasks start or cannot: GPUs, versions, private networks, and results beside copied code."""

from typing import Any

import pytest

from support.job_history import History, Willing
from support.specs import clustered
from tflaunch.core import replay
from tflaunch.core.event_records import from_record
from tflaunch.core.events import (
    HostJoined,
    HostPrepared,
    HostRefused,
    NamesResolved,
    OutsiderRefused,
    PortsHeld,
    TaskStarted,
)
from tflaunch.core.job_state import Phase
from tflaunch.core.states import CODE
from tflaunch.errors import EXIT_PREFLIGHT
from tflaunch.explain import summary
from tflaunch.plan import serialize

HOSTS = {"worker": ["a", "b"]}


def said(*starts: TaskStarted, **fields: object) -> list[str]:
    history = History(clustered(HOSTS, **fields)).happens(HostJoined("a"), HostJoined("b"))
    history.happens(NamesResolved("a", {"b": "10.0.0.2"}), NamesResolved("b", {"a": "10.0.0.1"}))
    history.happens(PortsHeld("a", {"worker:0": 2222}), PortsHeld("b", {"worker:1": 2222}))
    return [line for event in starts for line in history.told(event) if line.startswith("warning")]


def started(host: str, task: str, **facts: object) -> TaskStarted:
    return TaskStarted(host, task, 0, 7, 0.0, **facts)  # type: ignore[arg-type]


def test_different_versions_of_tensorflow_are_named_with_their_hosts() -> None:
    differs = ["warning: TensorFlow differs: 2.16 on a; 2.21 on b; install the same version everywhere"]
    for second, lines in (("2.21", differs), ("2.16", []), ("", [])):  # a program other than Python has none
        assert said(started("a", "worker:0", tensorflow="2.16"), started("b", "worker:1", tensorflow=second)) == lines


def joined(gpus: int | None, **fields: object) -> tuple[History, list[str]]:
    history = History(clustered({"worker": ["a:1", "a:2"]}, **fields))
    return history, history.told(HostJoined("a", gpus=gpus))


def test_gpus_that_are_not_there_are_a_refusal() -> None:
    """TensorFlow would train on the CPU, or the cluster would fail with a riddle: nothing is started."""
    history, _ = joined(1, roles={"worker": {"gpus": 1}})
    assert history.job.exit_code == EXIT_PREFLIGHT
    assert history.culprit.message == "a has 1 GPU, and its tasks are assigned 2: correct `gpus` in roles or hosts"


@pytest.mark.parametrize("gpus", [None, 2, 0])
def test_gpus_that_are_enough_or_cannot_be_counted_are_not_refused(gpus: int | None) -> None:
    """The host may have a driver other than NVIDIA's; on a machine without any GPU, a job is tried out."""
    history, lines = joined(gpus, roles={"worker": {"gpus": 1}})
    without = "warning: a has no GPU, and its tasks are assigned 2: they train on the CPU"
    assert (history.job.culprit, lines) == (None, [without] if gpus == 0 else [])


def test_tasks_that_share_gpus_are_named_before_the_start() -> None:
    """With what NCCL cannot do; not where there is no GPU, or each task names its own."""
    _, (line,) = joined(1)
    assert line.startswith("warning: worker:0, worker:1 share 1 GPU of a, and its memory; NCCL takes one task for a")
    assert joined(0)[1] == []
    assert joined(1, env={"CUDA_VISIBLE_DEVICES": "-1"})[1] == []


# ---- the user's code


def test_a_host_to_which_the_code_cannot_be_brought_ends_the_job() -> None:
    """Before any task starts, so that none runs with half of each version of a file."""
    history = History(clustered({"worker": ["a", "b"]}, sync={}))
    history.happens(HostJoined("a"), HostJoined("b"), HostRefused("a", CODE, "big changed while it was sent"))
    assert (history.job.phase, history.job.exit_code) == (Phase.ENDED, EXIT_PREFLIGHT)
    assert history.culprit.message == "the files of `sync` cannot be brought to a: big changed while it was sent"


# ---- private networks


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
    gone = {"seq": 7, "now": 5.0, "kind": "task_caught_up", "host": "a", "task": "worker:0", "attempt": 0}
    job = replay.replay_job([first, *joined, *held, refused, gone])
    assert job.port_fence.refused == ("192.0.2.1",)
    assert [str(task.address) for task in job.original.tasks] == ["127.90.0.1:auto", "127.90.0.2:auto"]


# ---- the end of the summary


def last_line(exit_code: int = 0, **fields: Any) -> str:
    """Return the end of the summary of a job that ran on h1, to which the code was copied."""
    job = Willing(clustered({"worker": ["h1"]}, restart={"max": 0}, strategy="none", **fields))
    if "sync" in fields:
        job.happens(HostPrepared("h1", CODE, "/home/ann/.local/state/tflaunch/runs/run/agents/h1/code"))
    job.ends("worker:0", exit_code)
    assert job.job.exit_code == exit_code
    return summary.summary(job.job, "/logs", lambda *_: []).split("\n")[-1]


@pytest.mark.parametrize("exit_code", [0, 7])
def test_results_beside_the_copied_code_are_told_with_a_command(exit_code: int) -> None:
    """Whether the job has succeeded or not; it reaches all hosts, however the run did."""
    assert last_line(exit_code, sync={}).endswith("beside the copied code; next: tflaunch fetch run PATH…")


@pytest.mark.parametrize("fields", [{}, {"sync": {}, "workdir": "/data"}])
def test_nothing_is_said_of_files_that_are_elsewhere(fields: dict[str, Any]) -> None:
    """The tasks ran beside the user's own files, or in another directory."""
    assert "relative paths" not in last_line(**fields)
