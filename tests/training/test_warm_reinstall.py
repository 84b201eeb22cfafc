"""Warm servers whose TensorFlow is reinstalled: the real one, in an environment of the test's own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.launch import LONG, Launch
from support.waiting import wait_gone

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.thorough,
    pytest.mark.skipif(not LONG, reason="links a whole environment, and imports TensorFlow ten times"),
]

PROGRAM = """
from importlib import metadata
import os, tensorflow as tf
strategy = tf.distribute.MultiWorkerMirroredStrategy()
one = strategy.run(tf.function(lambda: tf.constant(1.0)))
total = float(strategy.reduce("SUM", one, axis=None))
print("seen", tf.__version__, metadata.version("tensorflow"), tf.__file__, total, flush=True)
"""


@pytest.fixture
def python(tmp_path: Path) -> Iterator[Path]:
    """The interpreter of an environment whose packages are links to those of this one."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    place = site(tmp_path / "venv/bin/python")
    place.rmdir()
    copy_linked(Path(sysconfig.get_path("purelib")), place)
    yield tmp_path / "venv/bin/python"
    shutil.rmtree(tmp_path / "venv")  # later, it would change the times of the files from which other tests import


@pytest.fixture
def spec(launch: Launch, python: Path) -> Iterator[Path]:
    """Two workers that import TensorFlow there; their servers are ended."""
    launch.preload = []
    launch.env.pop("PYTHONPATH", None)
    yield launch.spec(cluster={"worker": 2}, command=[str(python), "-c", PROGRAM], warm="5m", restart={"max": 0})
    launch.run("warm", "--stop")


def site(python: Path) -> Path:
    """Return where an environment's packages are."""
    return python.parent.parent / Path(sysconfig.get_path("purelib")).relative_to(sys.prefix)


def copy_linked(source: Path, target: Path) -> None:
    """Copy a directory as hard links, or its files where that is not possible; files must be replaced, not edited."""

    def link(file: str, other: str) -> object:
        try:
            return os.link(file, other)  # type: ignore[func-returns-value]
        except OSError:
            return shutil.copy2(file, other)

    shutil.copytree(source, target, symlinks=True, copy_function=link)


def install_again(place: Path) -> None:
    """Replace the package by the same version, as pip does."""
    (place / "tensorflow").rename(place / "old")
    copy_linked(place / "old", place / "tensorflow")
    shutil.rmtree(place / "old")


def install_other_version(place: Path) -> None:
    """Replace the package by one that calls itself 9.9.9."""
    (about,) = place.glob("tensorflow-*.dist-info")
    version = about.name.removeprefix("tensorflow-").removesuffix(".dist-info")
    about.rename(place / "tensorflow-9.9.9.dist-info")
    replace_text(place / "tensorflow-9.9.9.dist-info/METADATA", f"\nVersion: {version}\n", "\nVersion: 9.9.9\n")
    replace_text(
        place / "tensorflow/__init__.py", "\n_names_with_underscore", "\n__version__ = '9.9.9'\n_names_with_underscore"
    )


def remove(place: Path) -> None:
    """Remove the package."""
    shutil.rmtree(place / "tensorflow")


def replace_text(path: Path, old: str, new: str) -> None:
    """Replace a file by one with another text; other links to it keep theirs."""
    text = path.read_text()
    assert text.count(old) == 1
    path.unlink()
    path.write_text(text.replace(old, new))


def run(launch: Launch, spec: Path, *arguments: str) -> tuple[int, set[str]]:
    """Run a job; return its exit code, and what its tasks have seen, or why they failed."""
    ended = launch.up(spec, *arguments)
    lines = (line.partition(" | ")[2] for line in ended.stdout.splitlines())
    return ended.returncode, {line for line in lines if line.startswith(("seen ", "ModuleNotFoundError"))}


def test_a_later_run_is_as_a_cold_one(launch: Launch, spec: Path, python: Path) -> None:
    """Whatever is done to the package under a living server; only without a change a run is started warm."""
    first = run(launch, spec)
    assert (first[0], len(first[1])) == (0, 1)
    server = server_of(launch)
    assert run(launch, spec) == first
    assert server_of(launch) == {**server, "uses": 1}
    for change in (install_again, install_other_version, remove):
        before = server_of(launch)["pid"]
        change(site(python))
        warm, cold = run(launch, spec), run(launch, spec, "--set", "warm=0")
        assert warm == cold
        assert (warm == first) == (change is install_again)
        assert ("9.9.9 9.9.9" in "".join(warm[1])) == (change is install_other_version)
        assert (warm[0] == 0) == (change is not remove)
        wait_gone(before)


def server_of(launch: Launch) -> dict[str, Any]:
    """Return the only server, without what changes by itself."""
    (server,) = json.loads(launch.run("warm", "--json").stdout)
    return {name: server[name] for name in ("pid", "python", "modules", "uses")}
