"""Compiled modules of our own, where Python does not keep any."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import tflaunch_worker
from support.disks import small_disks
from support.launch import PATIENCE, Launch
from tflaunch import own_home

pytestmark = pytest.mark.cli

PACKAGES = (Path(own_home.__file__).parent, Path(tflaunch_worker.__file__).parent)
NAMES = ("PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX")
TELL = f"import os, sys; print(sys.dont_write_bytecode, sys.pycache_prefix, *map(os.environ.get, {NAMES}))"


@pytest.fixture
def site(launch: Launch, tmp_path: Path) -> Path:
    """An installation without compiled modules, in an environment that wants none."""
    site = tmp_path / "site"
    for package in PACKAGES:
        shutil.copytree(package, site / package.name, ignore=shutil.ignore_patterns("__pycache__"))
    launch.env |= {"PYTHONPATH": str(site), "PYTHONSAFEPATH": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    return site


def run(launch: Launch, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run that installation."""
    command = [sys.executable, "-m", "tflaunch", *map(str, arguments)]
    return subprocess.run(
        command, cwd=launch.directory, env=launch.env, capture_output=True, text=True, timeout=PATIENCE, check=False
    )


def up(launch: Launch, *command: str, **fields: object) -> None:
    """Run a task to its end."""
    fields |= {"cluster": {"worker": 1}, "command": command, "strategy": "none"}
    done = run(launch, "up", launch.spec("job.json", **fields))
    assert done.returncode == 0, done.stderr


def files_in(home: Path) -> dict[str, tuple[int, int]]:
    """Return the compiled modules that are kept, and what changes when one is written again."""
    files = (home / own_home.COMPILED_NAME).rglob("*.pyc")
    return {str(file): (file.stat().st_ino, file.stat().st_mtime_ns) for file in files}


@pytest.mark.parametrize("is_read_only", [False, True])
def test_what_one_start_has_compiled_the_next_one_finds(launch: Launch, site: Path, is_read_only: bool) -> None:
    """The launcher's modules and the agent's, and the standard library; nothing is written beside the sources."""
    if is_read_only:  # for root as well
        del launch.env["PYTHONDONTWRITEBYTECODE"]
        for folder in {file.parent for file in site.rglob("*.py")}:
            (folder / "__pycache__").touch()
    up(launch, "true")
    kept = files_in(launch.home)
    for part in ("tflaunch/cli/main.", "tflaunch_worker/agent/task.", f"{os.path.dirname(os.__file__)}/json/decoder."):
        assert any(part in name for name in kept), part
    up(launch, "true")
    assert files_in(launch.home) == kept
    assert not list(site.rglob("*.pyc"))
    assert (launch.home / own_home.COMPILED_NAME).stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("preload", [[], ["json"]], ids=["started", "forked"])
def test_tasks_keep_what_the_user_has_set(launch: Launch, site: Path, preload: list[str]) -> None:
    """Also those that are forked from a process that has imported modules for them."""
    up(launch, sys.executable, "-c", TELL, preload=preload)
    assert launch.log("worker:0") == "True None 1 None\n"


def test_an_ordinary_installation_keeps_nothing_elsewhere(launch: Launch) -> None:
    """Its modules are compiled."""
    done = launch.up(launch.shell("true", workers=1))
    assert done.returncode == 0, done.stderr
    assert not (launch.home / own_home.COMPILED_NAME).exists()


@pytest.mark.parametrize("mode", [None, 0o777], ids=["cannot be made", "is anybody's"])
def test_without_a_home_of_ones_own_all_is_compiled_each_time(launch: Launch, site: Path, mode: int | None) -> None:
    """Compiled modules of another user would be run as this one."""
    if mode is None:
        launch.env["TFLAUNCH_HOME"] = "/proc/none"
    else:
        launch.home.mkdir()
        launch.home.chmod(mode)
    done = run(launch, "--version")
    assert (done.returncode, done.stderr) == (0, "")
    assert mode is None or not list(launch.home.iterdir())


def test_on_a_small_disk_none_is_kept(launch: Launch, site: Path) -> None:
    """Python might write half a file, and fail to import it."""
    with small_disks() as make_disk:
        make_disk(launch.home)
        assert run(launch, "--version").returncode == 0
        assert files_in(launch.home) == {}
