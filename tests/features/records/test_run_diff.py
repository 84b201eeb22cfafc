"""What a run is made of, and what differs between two runs."""

import copy
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.specs import planned
from tflaunch.features.records import run_diff, run_record
from tflaunch.plan import serialize
from tflaunch.plan.model import Plan, SecretSource
from tflaunch.store.journal import Journal
from tflaunch.store.run_dir import RunDirectory
from tflaunch_worker import linux

SPEC: dict[str, Any] = {
    "cluster": {"worker": ["a:1", "b:1"]},
    "strategy": "none",
    "command": ["python", "train.py", "--lr=0.1"],
    "env": {"SEED": "1"},
    "hosts": {"b": {"ssh": "ann@b:22"}},
}
RECORD: dict[str, Any] = {
    "tflaunch": "1.0",
    "python": "3.11.7",
    "interpreter": "/venv/bin/python",
    "packages": {"numpy": "2.0", "keras": "3.15"},
    "code": {"directory": "/code", "commit": "a" * 40, "patch": "", "untracked": {}, "programs": {"train.py": "1"}},
    "machine": {"host": "here", "cores": 2, "memory": 1 << 30, "gpus": 0, "processor": "fast"},
}


def written(directory: Path, spec: dict[str, Any], record: dict[str, Any], results: dict[str, Any]) -> Path:
    """Write a run that has ended."""
    directory.mkdir()
    plan = planned(spec)
    journal = Journal(RunDirectory.existing(directory, directory / "logs"))
    journal.record_plan(RunDirectory.existing(directory, directory / "logs"), serialize.as_json(plan), 0.0)
    journal.record_end(results.get("code", 0), [], "succeeded" if not results.get("code") else "failed")
    journal.close()
    (directory / "record.json").write_text(json.dumps(record))
    collected = directory / "collected" / "worker-0" / "outputs"
    collected.mkdir(parents=True)
    (collected / "model").write_text(results.get("model", "weights"))
    return directory


def put(*path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    """Return a change of a value inside an object."""

    def change(data: dict[str, Any]) -> None:
        for key in path[:-1]:
            data = data[key]
        data[path[-1]] = value

    return change


@pytest.mark.parametrize(
    ("where", "change", "name"),
    [
        (1, put("code", "commit", value="b" * 40), "code: commit: aaaaaaaaaaaa -> bbbbbbbbbbbb"),
        (1, put("code", "patch", value="c" * 64), 'code: patch: "" -> cccccccccccc'),
        (1, put("code", "untracked", value={"new.py": "1"}), "code: untracked.new.py: (none) -> 1"),
        (1, put("code", "programs", "train.py", value="2"), "code: programs.train.py: 1 -> 2"),
        (1, put("packages", "numpy", value="2.1"), "packages: numpy: 2.0 -> 2.1"),
        (1, put("packages", value={"numpy": "2.0"}), "packages: keras: 3.15 -> (none)"),
        (1, put("python", value="3.12.1"), "packages: python: 3.11.7 -> 3.12.1"),
        (0, put("env", "SEED", value="2"), "spec: tasks.worker:0.env.SEED: 1 -> 2"),
        (0, put("command", value=["python", "train.py", "--lr=0.2"]), "spec: tasks.worker:0.argv[2]: --lr=0.1 -> --lr"),
        (0, put("timeouts", value={"stall": 60}), "spec: timeouts.stall: (none) -> 60.0"),
        (0, put("cluster", "worker", value=["a:1", "b:2"]), "spec: tasks.worker:1.address: b:1 -> b:2"),
        (0, put("hosts", "b", "ssh", value="ann@c:22"), "spec: hosts.b.ssh: ann@b:22 -> ann@c:22"),
        (1, put("machine", "cores", value=4), "hosts: this machine.cores: 2 -> 4"),
        (1, put("machine", "host", value="there"), "hosts: this machine.host: here -> there"),
        (2, put("code", value=3), "results: exit code: 0 -> 3"),
        (2, put("model", value="others"), "results: collected.worker-0/outputs/model: "),
    ],
)
def test_a_planted_change_is_named(tmp_path: Path, where: int, change: Callable[[Any], None], name: str) -> None:
    made: list[dict[str, Any]] = [copy.deepcopy(SPEC), copy.deepcopy(RECORD), {}]
    first = written(tmp_path / "first", *made)
    change(made[where])
    second = written(tmp_path / "second", *made)
    found = [difference.sentence() for difference in run_diff.compare(first, second)]
    assert any(sentence.startswith(name) for sentence in found), found
    assert len({sentence.split(": ")[0] for sentence in found}) == 1
    assert run_diff.compare(first, first) == []


@pytest.mark.parametrize("text", ["", "[]", "{", '{"packages": [], "code": "x", "machine": 3}', "\x00"])
def test_a_damaged_record(tmp_path: Path, text: str) -> None:
    first = written(tmp_path / "first", SPEC, RECORD, {})
    second = written(tmp_path / "second", SPEC, RECORD, {})
    (second / "record.json").write_text(text)
    assert {difference.section for difference in run_diff.compare(first, second)} <= {"code", "packages", "hosts"}


def local_plan(directory: Path) -> Plan:
    """Return the plan of a program on this machine."""
    plan = planned({"cluster": {"worker": 1}, "strategy": "none", "command": [sys.executable, "train.py"]})
    (task,) = plan.tasks
    return plan._replace(tasks=(task._replace(workdir=str(directory)),))


def git(directory: Path, *arguments: str) -> str:
    about = ("-c", "user.name=Ann", "-c", "user.email=ann@example.org")
    done = subprocess.run(["git", *about, *arguments], cwd=directory, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def commit(directory: Path, files: str = ".") -> None:
    git(directory, "init", "-q")
    git(directory, "add", files)
    git(directory, "commit", "-q", "-m", "first")


def test_code_in_a_repository(tmp_path: Path) -> None:
    """The commit, and a patch that leads from it to what runs; the index stays as it is."""
    program = tmp_path / "train.py"
    program.write_bytes(b"# on\xe9\n")  # which need not be text
    commit(tmp_path)
    about, patch = run_record.describe(local_plan(tmp_path))
    assert about["code"]["commit"] == git(tmp_path, "rev-parse", "HEAD")
    assert (about["code"]["patch"], patch) == ("", b"")
    program.write_bytes(b"# tw\xf6\n")
    (tmp_path / "helper.py").write_text("new\n")
    index = (tmp_path / ".git" / "index").read_bytes()
    run = tmp_path / "run"
    run.mkdir()
    run_record.write(run, local_plan(tmp_path))
    assert (tmp_path / ".git" / "index").read_bytes() == index
    about = run_diff.read_record(run)
    assert list(about["code"]["untracked"]) == ["helper.py"]
    git(tmp_path, "checkout", "-q", "train.py")
    git(tmp_path, "apply", str(run / "code.patch"))
    assert program.read_bytes() == b"# tw\xf6\n"
    assert (run / "record.json").stat().st_mode & 0o777 == 0o600


def test_the_file_of_a_secret_is_left_out(tmp_path: Path) -> None:
    for name in ("tracked", "untracked"):
        (tmp_path / name).write_text("old\n")
    commit(tmp_path, "tracked")
    (tmp_path / "tracked").write_text("hunter2\n")
    secrets = {name: SecretSource(file=str(tmp_path / name)) for name in ("tracked", "untracked")}
    about, patch = run_record.describe(local_plan(tmp_path)._replace(secrets=secrets))
    assert (about["code"]["patch"], about["code"]["untracked"], patch) == ("", {}, b"")


def test_code_without_a_repository(tmp_path: Path) -> None:
    """The program's hash still tells two versions apart; interpreter and machine are known."""
    (tmp_path / "train.py").write_text("one\n")
    about, patch = run_record.describe(local_plan(tmp_path))
    assert about["code"].keys() == {"directory", "programs"}
    assert about["code"]["programs"].keys() == {"train.py"}
    assert patch == b""
    assert about["packages"]["pytest"] == pytest.__version__
    assert about["python"] == ".".join(map(str, sys.version_info[:3]))
    assert about["machine"]["cores"] >= 1
    (task,) = local_plan(tmp_path).tasks
    task = task._replace(argv=("train",), env={**task.env, "PATH": str(tmp_path)})
    about, _ = run_record.describe(local_plan(tmp_path)._replace(tasks=(task,)))
    assert (about["interpreter"], about["packages"]) == ("", {})


def test_the_models_of_gpus_are_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As NVIDIA's driver tells them, so that two machines with as many GPUs differ."""
    for bus in ("0000:0a:00.0", "0000:0b:00.0"):
        (tmp_path / bus).mkdir()
        (tmp_path / bus / "information").write_text("Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 51\n")
    monkeypatch.setattr(linux, "NVIDIA_GPUS", str(tmp_path))
    machine = run_record.describe(local_plan(tmp_path))[0]["machine"]
    assert (machine["gpus"], machine["gpu_models"]) == (2, ["NVIDIA H100 80GB HBM3"] * 2)
