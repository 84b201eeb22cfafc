"""The example project of the documentation: its own tests pass."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.launch import LONG, PATIENCE, Launch
from support.specs import REPOSITORY

PROJECT = REPOSITORY / "docs" / "example_project"
READING = "read"
"""What its tests without TensorFlow have in their names."""


@pytest.fixture
def project(launch: Launch) -> Path:
    launch.env["TMPDIR"] = str(launch.directory)
    return Path(shutil.copytree(PROJECT, launch.directory / "project"))


def check(launch: Launch, project: Path, passed: int, *arguments: str) -> str:
    """Run its tests, as many as should pass; return what pytest said."""
    without = ("no:cacheprovider", "no:hypothesispytest", "no:anyio")  # slow to import, and the project needs none
    plugins = [word for name in without for word in ("-p", name)]
    command = [sys.executable, "-m", "pytest", *plugins, *arguments]
    ended = subprocess.run(
        command, cwd=project, env=launch.env, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert f"{passed} passed" in ended.stdout
    assert not launch.survivors()
    return ended.stdout


@pytest.mark.tensorflow
@pytest.mark.thorough
def test_it_trains(launch: Launch, project: Path) -> None:
    """With pytest-xdist, as its CI file runs them; long runs train by its command, too."""
    passed, chosen = (4, "") if LONG else (3, f"{READING} or learn")
    check(launch, project, passed, "-n", "2", "-k", chosen)


@pytest.mark.cli
@pytest.mark.needs("index")
@pytest.mark.skipif(not LONG, reason="the same with another pytest: TFLAUNCH_TEST_LONG=1")
def test_pytest_8(launch: Launch, project: Path) -> None:
    """The oldest pytest that the plugin supports, with pytest-xdist and without."""
    target = launch.directory / "pytest 8"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(target), "pytest<9"]
    subprocess.run(install, check=True, timeout=PATIENCE)
    launch.env["PYTHONPATH"] = str(target)
    assert "pytest-8." in check(launch, project, 4, "-n", "2")
    check(launch, project, 4)
