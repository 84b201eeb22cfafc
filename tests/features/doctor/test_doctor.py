"""Findings of `doctor`: each fault is reported by name, and a healthy host gives no findings."""

from pathlib import Path
from typing import Any

import pytest

from support.specs import clustered, planned
from tflaunch.features.doctor.findings import CHECKS, Finding, Host, findings, reachable_by, unchecked
from tflaunch.plan.model import Plan
from tflaunch_worker.features.doctor import host_doctor

PROGRAM = {
    "python": "3.11.2", "tensorflow": "2.21.0", "keras": "3.12.0", "tf_keras": "2.21.0",
    "program": "/job/train.py", "sha256": "aa", "is_missing": False, "backs_up": False, "backups": [],
}  # fmt: skip
FACTS = {
    "memory": {"total": 2**35, "available": 2**34}, "disk": {"/job": 2**36}, "files": [4096, 65536], "gpus": [],
    "cores": 8, "python": "3.11.2", "time": 0.0,
}  # fmt: skip
CLUSTER = {"worker": ["a:2222", "b:2222"]}


def healthy(host: str, task: str) -> Host:
    return Host(host, None, {task: PROGRAM}, FACTS, 0.0, {"a" if host == "b" else "b": "10.0.0.9"})


def found(second: Host, plan: Plan | None = None) -> list[Finding]:
    return findings(plan or clustered(CLUSTER), {"a": healthy("a", "worker:0"), "b": second})


def with_program(**changes: Any) -> Host:
    return healthy("b", "worker:1")._replace(programs={"worker:1": {**PROGRAM, **changes}})


def with_facts(**changes: Any) -> Host:
    return healthy("b", "worker:1")._replace(facts={**FACTS, **changes})


A, B = healthy("a", "worker:0"), healthy("b", "worker:1")
FAULTS = [
    (Host("b", reason="connection refused"), "reach", "error", "connection refused"),
    (with_program(problem="command not found: 'python'"), "program", "error", "command not found"),
    (with_program(problem="there is no directory /job", is_workdir=True), "program", "error", "no directory /job"),
    (with_program(is_missing=True, sha256=None), "program", "error", "/job/train.py is not there"),
    (with_program(sha256="bb"), "program", "error", "train.py is not the same on a and on b"),
    (with_program(python="3.9.2"), "python", "warning", "python differs: 3.11.2 on a; 3.9.2 on b"),
    (with_program(tensorflow=None), "tensorflow", "error", "its Python has no TensorFlow"),
    (with_program(tensorflow="2.19.1"), "tensorflow", "error", "tensorflow differs: 2.21.0 on a; 2.19.1 on b"),
    (with_program(tensorflow="2.21.1"), "tensorflow", "warning", "tensorflow differs"),
    (with_program(keras="3.9.0"), "keras", "warning", "keras differs"),
    (with_program(tf_keras=None), "keras", "warning", "tf.keras will be Keras 3"),
    (B._replace(names={"a": "127.0.1.1"}), "names", "error", "'a' means 127.0.1.1"),
    (B._replace(names={"a": ""}), "names", "error", "does not know the name 'a'"),
    (B._replace(refused={"worker:1": "port 2222 is in use by pid 7"}), "ports", "error", "in use by pid 7"),
    (B._replace(unreached={"worker:0": "timed out"}), "peers", "error", "cannot reach worker:0 at a:2222: timed out"),
    (with_facts(unfenced="the kernel does not allow it"), "fence", "warning", "the kernel does not allow it"),
    (B._replace(offset=-130.0), "clock", "warning", "2 min 10 s behind"),
    (with_facts(disk={"/job": 2**20}), "disk", "warning", "1 MiB are free at /job"),
    (with_facts(memory={"total": 2**30, "available": 2**27}), "memory", "warning", "128 MiB of memory"),
    (with_facts(files=[256, 4096]), "files", "warning", "256 files only"),
    (with_facts(gpus=["A100"]), "gpus", "warning", "numbers of GPUs differ: 0 on a; 1 on b"),
    (with_facts(gpus=None), "gpus", "warning", "nvidia-smi does not answer"),
    (B._replace(unshared=("/job/state",)), "checkpoints", "warning", "/job/state is not the same directory"),
]


@pytest.mark.parametrize(("host", "check", "severity", "words"), FAULTS, ids=[fault[1] for fault in FAULTS])
def test_each_fault_is_found_by_name(host: Host, check: str, severity: str, words: str) -> None:
    assert found(B) == [], "of two identical hosts"
    (finding,) = found(host)
    assert (finding.check, finding.severity) == (check, severity)
    assert words in finding.message
    assert finding.hint


PRIVATE: dict[str, Any] = {"cluster": {"worker": 2}, "network": "private"}


@pytest.mark.parametrize(
    ("facts", "fields", "severity", "message"),
    [
        ({"unfenced": "no"}, {"network": "fenced"}, "warning", "no"),
        ({"unfenced": "no"}, {"network": "fenced-or-fail"}, "error", "no"),
        ({"not_private": "forbidden"}, PRIVATE, "error", "a private network is not possible: forbidden"),
        # It may be what the user wants.
        ({"no_way_out": "no pasta"}, PRIVATE, "warning",
         "tasks have no way out of the private network of localhost: no pasta"),
    ],
)  # fmt: skip
def test_a_network_that_is_required_must_be_possible(
    facts: dict[str, Any], fields: dict[str, Any], severity: str, message: str
) -> None:
    plan = clustered(**{"cluster": CLUSTER, **fields})
    host = plan.hosts[-1].host
    known = {"a": A, host: with_facts(**facts)._replace(host=host)} if host == "b" else {host: with_facts(**facts)}
    (finding,) = findings(plan, {name: about._replace(host=name) for name, about in known.items()})
    assert (finding.check, finding.severity) == ("fence", severity)
    assert message in finding.message


@pytest.mark.parametrize(
    ("fields", "who"),
    [
        ({}, "the cluster's hosts"),
        ({"network": "open"}, "everybody"),
        ({"strategy": "none"}, "the cluster's hosts"),
        ({"cluster": {"worker": 2}}, "this machine"),
        ({"cluster": {"worker": 2}, "network": "private"}, "the run's own tasks"),
    ],
)
def test_who_could_reach_a_task_is_told(fields: dict[str, Any], who: str) -> None:
    plan = clustered(**{"cluster": CLUSTER, **fields})
    host = plan.hosts[0].host
    assert reachable_by(plan, Host(host, facts=FACTS))["worker:0"] == who
    assert [finding.check for finding in findings(plan, {host: Host(host, facts=FACTS)})] == (
        ["fence"] if who == "everybody" else []
    )


PROXY = {"grpc_proxy": "http://proxy:3128"}


@pytest.mark.parametrize(
    ("second", "fields", "check", "severity"),
    [
        (B, {"env": PROXY}, "proxies", "warning"),
        (B, {"env": {**PROXY, "no_grpc_proxy": "*"}}, "", ""),
        (B, {"env": {"https_proxy": "http://proxy:3128"}}, "", ""),
        (with_facts(gpus=[]), {"roles": {"worker": {"gpus": 2}}}, "gpus", "error"),
        (with_program(tf_keras=None), {"legacy_keras": True}, "keras", "error"),
        (with_program(tf_keras=None), {"legacy_keras": False}, "", ""),
        # It may run anything.
        (with_program(tensorflow=None, tf_keras=None), {"strategy": "none"}, "", ""),
    ],
)
def test_the_spec_decides_what_is_needed(second: Host, fields: dict[str, Any], check: str, severity: str) -> None:
    fields = {"cluster": {"worker": ["a", "b"]} if "strategy" in fields else CLUSTER, **fields}
    findings_here = found(second, clustered(**fields))[:1]
    assert [(finding.check, finding.severity) for finding in findings_here] == [(check, severity)] * bool(check)


def test_what_was_not_checked_is_not_ok() -> None:
    """Every check can find something."""
    assert {fault[1] for fault in FAULTS} | {"proxies", "secrets", "tensorboard"} == set(CHECKS)
    plan = clustered(CLUSTER)
    lost = {"a": A, "b": Host("b", reason="no route; check the cable")}
    (finding,) = findings(plan, lost)
    assert (finding.message, finding.hint) == ("no route", "check the cable"), "a second remedy would be wrong"
    assert unchecked(plan, lost)["tensorflow"] == "needs b"
    assert set(CHECKS) - set(unchecked(plan, lost)) == {"reach", "proxies", "secrets"}
    assert unchecked(plan, {"a": A, "b": B}) == {}
    shell = {host.host: host._replace(programs={"worker:0": {}}) for host in (A, B)}
    assert set(unchecked(plan, shell)) == {"python", "tensorflow", "keras"}


def test_a_missing_tensorboard_is_reported() -> None:
    fields = {"strategy": "mirrored", "tensorboard": "logs/"}
    plan = planned({"cluster": {"worker": 1}, "command": ["python", "train.py"], **fields})
    good = {"python": "3.11.7", "tensorflow": "2.21.0", "keras": "3", "tf_keras": None, "has_tensorboard": True}
    for known in ({**good, "tensorflow": None, "has_tensorboard": False}, {"problem": "command not found: 'python'"}):
        hosts = {"localhost": Host("localhost", programs={"worker:0": good, "tensorboard": known})}
        (finding,) = findings(plan, hosts)
        assert (finding.check, finding.severity, finding.where) == ("tensorboard", "warning", "localhost (tensorboard)")


def test_a_mark_is_left_in_the_nearest_directory_that_exists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program may create the directory itself; none is left where nothing of the user is."""
    left = host_doctor.mark(str(tmp_path / "run" / "state"), "token")
    assert left == str(tmp_path / ".tflaunch-token")
    Path(left).unlink()
    monkeypatch.chdir(tmp_path)
    assert [host_doctor.mark(directory, "token") for directory in ("", "state", "./state", "/")] == [None] * 4
    assert list(tmp_path.iterdir()) == []
