"""A plan is kept as long as nothing changes on which it depends."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tflaunch.clusterspec import load
from tflaunch.clusterspec.spec_file import SpecFile, read_spec_file
from tflaunch.errors import SpecError
from tflaunch.runtime import plan_cache
from tflaunch.runtime.plan_cache import plan_spec

pytestmark = pytest.mark.unit

SPEC = {"cluster": {"worker": 2}, "command": ["python", "train.py"], "env": {"DATA": "${DATA}"}}


class Counter:
    """Counts how often specs are really read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        real = load.load_spec

        def load_spec(*arguments: Any, **options: Any) -> Any:
            self.count += 1
            return real(*arguments, **options)

        monkeypatch.setattr(load, "load_spec", load_spec)


@pytest.fixture
def reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Counter:
    """How often specs were read, with an own home and an own configuration."""
    (tmp_path / "home").mkdir(mode=0o700)
    monkeypatch.setenv("TFLAUNCH_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TFLAUNCH_CONFIG", str(tmp_path / "config.toml"))
    (tmp_path / "config.toml").write_text("[timeouts]\ngrace = 7\n")
    monkeypatch.setenv("DATA", "/data")
    return Counter(monkeypatch)


def write(directory: Path, **fields: object) -> SpecFile:
    path = directory / "job.json"
    path.write_text(json.dumps({**SPEC, **fields}))
    return read_spec_file(path)


def kept(directory: Path) -> list[Path]:
    return sorted((directory / "home" / "plans").iterdir())


def test_a_plan_is_the_same_when_it_is_read_again(tmp_path: Path, reads: Counter) -> None:
    file = write(tmp_path, strategy="none", container={"image": "train:1"})
    first = plan_spec(file)
    assert first.warnings
    assert (plan_spec(file), reads.count) == (first, 1)
    assert first.plan.timeouts.grace == 7
    (path,) = kept(tmp_path)
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)


def set_variable(name: str) -> Callable[[pytest.MonkeyPatch, Path], None]:
    return lambda patch, _: patch.setenv(name, "other")


def write_file(name: str, text: str) -> Callable[[pytest.MonkeyPatch, Path], None]:
    def change(patch: pytest.MonkeyPatch, place: Path) -> None:
        (place / name).write_text(text)

    return change


CHANGES: dict[str, Callable[[pytest.MonkeyPatch, Path], None]] = {
    "a variable that it names": set_variable("DATA"),
    "any variable": set_variable("SOMETHING"),
    "the defaults": write_file("config.toml", "[timeouts]\ngrace = 8\n"),
    "defaults beside it": write_file("tflaunch.toml", "[restart]\nmax = 1\n"),
    "the cores": lambda patch, _: patch.setattr("tflaunch_worker.inspect.cores.usable", lambda: 77),
    "the code": lambda patch, _: patch.setattr(plan_cache, "_SOURCES", ("clusterspec",)),
}
OPTIONS: list[dict[str, Any]] = [
    {"settings": ["restart.max=0"]},
    {"name": "other"},
    {"command": ["python", "other.py"]},
    {"is_detached": True},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_an_option_is_seen(tmp_path: Path, reads: Counter, options: dict[str, Any]) -> None:
    file = write(tmp_path)
    first = plan_spec(file)
    changed = plan_spec(file, **options)
    assert (changed != first, reads.count) == (True, 2)
    assert (plan_spec(file, **options), plan_spec(file), reads.count) == (changed, first, 2)


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_seen(tmp_path: Path, reads: Counter, monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    file = write(tmp_path)
    plan_spec(file)
    CHANGES[change](monkeypatch, tmp_path)
    changed = plan_spec(file)
    assert reads.count == 2
    assert (plan_spec(file), reads.count) == (changed, 2)


def test_another_text_or_directory_is_another_spec(tmp_path: Path, reads: Counter) -> None:
    file = write(tmp_path)
    plan_spec(file)
    plan_spec(file._replace(text=file.text + " "))
    plan_spec(file._replace(directory=tmp_path / "home"))
    assert reads.count == 3


def test_defaults_that_others_can_write_are_refused_again(tmp_path: Path, reads: Counter) -> None:
    file = write(tmp_path)
    plan_spec(file)
    (tmp_path / "config.toml").chmod(0o666)
    with pytest.raises(SpecError, match="can be written by everybody"):
        plan_spec(file)


def test_an_invalid_spec_is_read_every_time(tmp_path: Path, reads: Counter) -> None:
    file = write(tmp_path, strategy="no such")
    for _ in range(2):
        with pytest.raises(SpecError):
            plan_spec(file)
    assert reads.count == 2


def test_hosts_are_discovered_every_time(tmp_path: Path, reads: Counter) -> None:
    file = write(tmp_path, discover={"worker": "exec:printf localhost:2222"}, cluster={}, strategy="none")
    for _ in range(2):
        plan_spec(file)
    assert reads.count == 2


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"hosts": 3}', '{"facts": {}, "hosts": [], "plan": {}}'])
def test_a_damaged_entry_is_ignored(tmp_path: Path, reads: Counter, text: str) -> None:
    file = write(tmp_path)
    first = plan_spec(file)
    (path,) = kept(tmp_path)
    path.write_text(text)
    assert (plan_spec(file), reads.count) == (first, 2)
    assert (plan_spec(file), reads.count) == (first, 2)


def test_a_directory_that_others_can_write_is_not_trusted(tmp_path: Path, reads: Counter) -> None:
    file = write(tmp_path)
    first = plan_spec(file)
    (tmp_path / "home" / "plans").chmod(0o777)
    assert (plan_spec(file), reads.count) == (first, 2)


def test_only_the_newest_are_kept(tmp_path: Path, reads: Counter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_cache, "_MOST_KEPT", 3)
    file = write(tmp_path)
    for number in range(5):
        plan_spec(file, name=f"job-{number}")
        os.utime(max(kept(tmp_path), key=lambda path: path.stat().st_mtime_ns), (number, number))
    assert len(kept(tmp_path)) == 3
    plan_spec(file, name="job-4")
    assert reads.count == 5
