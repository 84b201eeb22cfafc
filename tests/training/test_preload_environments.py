"""`preload` in environments with packages whose libraries start threads: each works, or the module is named."""

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from support.launch import LONG, PATIENCE, Launch
from support.needs import need
from support.preload_environments import ENVIRONMENTS, PAGE, refusal, versions, with_row

pytestmark = [pytest.mark.tensorflow, pytest.mark.thorough]

USE = """
import os, sys
import numpy
import tensorflow as tf
import MODULES
ones = numpy.ones((600, 600))  # large enough for the threads of OpenBLAS and Eigen
assert (ones @ ones).sum() == 600**3 == float(tf.reduce_sum(tf.matmul(ones, ones)))
PROGRAM
print("result", result)
sys.exit(int(sys.argv[1]))
"""
WRITE_TABLE = bool(os.environ.get("TFLAUNCH_WRITE_TABLE"))
"""Whether docs/warm_start.md gets what is found here; `make nightly` sets it."""
ALWAYS = ("pandas", "grpcio", "small")
"""Environments that are also tried when time is short: one with a thread of its own, and two that are small."""
RUNS, TASKS = (4, 50) if LONG else (1, 10)
"""How many runs fork how many tasks each from one process."""


class Place(NamedTuple):
    """An environment with packages beside those of this one."""

    name: str
    python: Path


@pytest.fixture(scope="module", params=ENVIRONMENTS)
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """Make an environment for its tests, and remove it: all of them together take 10 GB."""
    name: str = request.param
    if not (LONG or name in ALWAYS):
        pytest.skip("makes an environment for each package: TFLAUNCH_TEST_LONG=1")
    need("index")
    directory = tmp_path_factory.mktemp(name)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", directory], check=True)
    packages = directory / Path(sysconfig.get_path("purelib")).relative_to(sys.prefix)
    (packages / "base.pth").write_text(sysconfig.get_path("purelib"))
    python = directory / "bin/python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-compile"]
    wanted = ENVIRONMENTS[name].packages
    done = subprocess.run([*pip, *wanted], check=False, capture_output=True, text=True, timeout=PATIENCE * 2)
    assert done.returncode == 0, done.stderr
    yield Place(name, python)
    shutil.rmtree(directory)


def run(
    launch: Launch, place: Place, program: str, workers: int, *preload: str, code: int = 0
) -> tuple[set[str], list[str]]:
    """Run a program that exits with ``code``; return how its tasks were started, and what they have written."""
    launch.preload = None
    launch.env.pop("PYTHONPATH", None)
    (launch.directory / "prog.py").write_text(program.replace("MODULES", ", ".join(ENVIRONMENTS[place.name].modules)))
    command = [str(place.python), "prog.py", str(code)]
    fields: dict[str, Any] = {"cluster": {"worker": workers}, "command": command, "strategy": "none"}
    fields["env"] = {"OMP_WAIT_POLICY": "passive"}  # threads of 50 tasks would keep all CPUs busy with waiting
    ended = launch.up(launch.spec(**fields, preload=list(preload), restart={"max": 0}))
    journal = launch.journal()
    codes = [record["code"] for record in journal if record["kind"] == "task_exited"]
    assert codes == [code] * workers, ended.stdout[-4000:] + ended.stderr[-4000:]
    (launch.home / "runs").rename(launch.directory / f"runs-{os.urandom(4).hex()}")
    starts = {record["preload"] for record in journal if record["kind"] == "task_started"}
    return starts, sorted(line.partition(" | ")[2] for line in ended.stdout.splitlines() if " | " in line)


def test_forks_use_what_was_imported_for_them(launch: Launch, place: Place) -> None:
    """As ordinary tasks do, with the same results and exit codes, and none hangs; or the module is named."""
    _, modules, use, refused = ENVIRONMENTS[place.name]
    program = USE.replace("PROGRAM", use)
    starts, lines = run(launch, place, program, 1, code=7)
    assert starts == {""}
    (expected,) = [line for line in lines if line.startswith("result ")]
    preload = ["tensorflow", *modules]
    starts, lines = run(launch, place, program, 1, *preload, code=7)
    assert expected in lines
    if refused:
        (reason,) = starts
        assert reason.startswith(f"no: importing {refused} has started "), reason
        result = refusal(refused)
    else:
        for _ in range(RUNS):
            again, lines = run(launch, place, program, TASKS, *preload)
            starts |= again
            assert [line for line in lines if line.startswith("result ")] == [expected] * TASKS
        assert starts == {",".join(preload)}
        result = f"forked, {RUNS * TASKS} of {RUNS * TASKS}"
    if WRITE_TABLE:
        PAGE.write_text(with_row(PAGE.read_text(), place.name, versions(place.python, place.name), result))
