"""The pytest plugin: tests whose body runs in every task of a cluster, and commands as clusters."""

import getpass
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from support.processes import processes_with
from support.waiting import PATIENCE, check_with_limits, wait_until

HEAD = "import json, os, pathlib, time, pytest\nCONFIG = json.loads(os.environ.get('TF_CONFIG', '{}'))\n"
WITHOUT = ("-p", "no:cacheprovider", "-p", "no:hypothesispytest", "-p", "no:anyio")
"""Plugins that these tests do not need; Hypothesis and AnyIO take half the CPU time of each task's pytest."""
HANGS = """
@pytest.mark.tflaunch(worker=2, timeout={timeout})
def test_hangs():
    pathlib.Path(os.environ["MARKS"], os.environ["TFLAUNCH_TASK"]).touch()
    time.sleep(9999)
"""


class Project:
    """A directory with tests, and pytest to run them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.marks = directory / "marks"
        self.marks.mkdir()
        self.env = {**os.environ, "MARKS": str(self.marks), "PYTHONDONTWRITEBYTECODE": "1"}
        for name in ("PYTEST_ADDOPTS", "PYTEST_CURRENT_TEST", "TFLAUNCH_HOME"):
            self.env.pop(name, None)

    def start(self, tests: str, *arguments: str) -> subprocess.Popen[str]:
        (self.directory / "test_it.py").write_text(HEAD + tests)
        command = [sys.executable, "-m", "pytest", *WITHOUT, "--basetemp=temporary", *arguments]
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        return subprocess.Popen(command, cwd=self.directory, env=self.env, text=True, **pipes)

    def run(self, tests: str, *arguments: str) -> tuple[int, str]:
        """Run pytest with one file of tests; return its exit code and its output."""
        process = self.start(tests, *arguments)
        out, _ = process.communicate(timeout=PATIENCE)
        return process.returncode, out

    def processes(self) -> list[psutil.Process]:
        """Return the living processes that pytest, tflaunch and the tasks have started here."""
        return list(processes_with("MARKS", str(self.marks)))


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    """A project of its own; nothing of it may be left running."""
    made = Project(tmp_path)
    yield made
    left = psutil.wait_procs(made.processes(), timeout=PATIENCE)[1]
    for process in left:
        process.kill()
    assert not left


def test_the_body_runs_in_every_task(project: Project) -> None:
    """With fixtures, parameters and classes; it may skip, or fail as expected."""
    tests = """
MARKS = pathlib.Path(os.environ["MARKS"])

@pytest.mark.tflaunch(worker=2, ps=1, chief=1)
def test_roles():
    task = CONFIG["task"]
    (MARKS / f"{task['type']}-{task['index']}").touch()
    while task["type"] == "chief" and len(list(MARKS.glob("*-*"))) < 4:  # the others are stopped when it has passed
        time.sleep(0.05)
    assert {role: len(found) for role, found in CONFIG["cluster"].items()} == {"chief": 1, "worker": 2, "ps": 1}

@pytest.fixture
def number(tmp_path):
    return len(str(tmp_path))

class TestThat:
    @pytest.mark.parametrize("text", ["a b", "x::y[1]"])
    @pytest.mark.tflaunch(worker=1)
    def test_it(self, text, number):
        assert number and text in ("a b", "x::y[1]")
        (MARKS / text).touch()

@pytest.mark.tflaunch(worker=2)
def test_skipped():
    pytest.skip("not today")

@pytest.mark.xfail(strict=True)
@pytest.mark.tflaunch(worker=1)
def test_expected():
    assert False
"""
    code, out = project.run(tests, "-rs")
    assert (code, "3 passed, 1 skipped, 1 xfailed" in out, "not today" in out) == (0, True, True), out
    assert sorted(os.listdir(project.marks)) == ["a b", "chief-0", "ps-0", "worker-0", "worker-1", "x::y[1]"]


@pytest.mark.thorough
def test_each_task_has_temporary_directories_of_its_own(project: Project) -> None:
    """Pytest gives each session the next number, and removes the directories of all but the last three."""
    tests = """
@pytest.mark.tflaunch(worker=4)
def test_directories(tmp_path):
    (pathlib.Path(os.environ["MARKS"]) / os.environ["TFLAUNCH_TASK"]).write_text(str(tmp_path))
"""
    root = project.directory / "root"
    earlier = root / f"pytest-of-{getpass.getuser()}" / "pytest-0" / "kept"
    earlier.mkdir(parents=True)
    project.env["PYTEST_DEBUG_TEMPROOT"] = str(root)
    code, out = project.run(tests)
    assert code == 0, out
    assert earlier.exists()
    places = {mark.name: Path(mark.read_text()) for mark in project.marks.iterdir()}
    assert len({place.parent for place in places.values()}) == 4
    assert all((project.directory / "temporary") in place.parents for place in places.values())


def test_the_guilty_tasks_traceback_is_the_tests(project: Project) -> None:
    tests = """
@pytest.mark.tflaunch(worker=2)
def test_guilty():
    print("I am", CONFIG["task"]["index"])
    if CONFIG["task"]["index"] == 0:
        pathlib.Path(os.environ["MARKS"], "said").touch()
        time.sleep(9999)
    while not pathlib.Path(os.environ["MARKS"], "said").exists():
        time.sleep(0.01)
    numbers = [1, 2, CONFIG["task"]["index"]]
    assert numbers == [1, 2, 0]
"""
    code, out = project.run(tests, "-rf")
    assert code == 1
    assert "worker:1: assert [1, 2, 1] == [1, 2, 0]\n" in out
    assert ">       assert numbers == [1, 2, 0]\n" in out
    assert "FAILED test_it.py::test_guilty - Failed: worker:1: assert [1, 2, 1] == [1, 2, 0]\n" in out
    assert re.search("- output of worker:0 -+\nI am 0\n", out)
    assert re.search("- output of worker:1 -+\nI am 1\n", out)


def test_a_limit_shows_all_stacks(project: Project) -> None:
    def check(timeout: int) -> None:
        code, out = project.run(HANGS.format(timeout=timeout))
        assert code == 1
        assert f"not finished within {timeout} s; the stacks of the tasks are in their output" in out
        assert out.count(" in test_hangs\n") == 2

    check_with_limits(check, (5, 55))


def test_a_mistake_in_the_marker_is_one_sentence(project: Project) -> None:
    sentences = {
        "worker=2, strateggy='none'": "unknown field 'strateggy'; did you mean 'strategy'?",
        "workers=2": "@pytest.mark.tflaunch: unknown field 'workers'; did you mean 'worker'?",
        "2": "@pytest.mark.tflaunch takes names only, such as worker=2",
        "worker=0": "Spec: cluster:",
    }
    test = "@pytest.mark.tflaunch({marker})\ndef test_{number}(): pass\n"
    code, out = project.run("".join(test.format(marker=each, number=n) for n, each in enumerate(sentences)))
    assert [words for words in sentences.values() if words not in out] == [], out
    assert (code, "4 failed" in out, "Traceback" in out) == (1, True, False), out


def test_a_command_as_a_cluster(project: Project) -> None:
    tests = """
def test_command(tflaunch_cluster):
    assert not os.path.exists(pathlib.Path(os.environ["TFLAUNCH_HOME"], "runs"))  # each test has its own
    result = tflaunch_cluster(workers=2, ps=1, chiefs=1, command=["sh", "-c", "echo $TFLAUNCH_TASK"], timeout=9999)
    assert result.exit_code == 0
    assert sorted(result.tasks) == ["chief:0", "ps:0", "worker:0", "worker:1"]

def test_failing(tflaunch_cluster):
    result = tflaunch_cluster(command="sh -c 'echo what happened; exit 3'")
    assert result.exit_code == 0, result.summary
"""
    code, out = project.run(tests)
    assert (code, "1 failed, 1 passed" in out) == (1, True), out
    assert re.search("- output of worker:0 -+\nwhat happened\n", out)


def test_a_training_that_has_to_survive_a_kill(project: Project) -> None:
    """The program of each test writes its step, and reads it or not."""
    program = "import os, pathlib, sys, time; kept = pathlib.Path('step.json')\n"
    program += "first = int(kept.read_text()) if kept.exists() and sys.argv[1:] else 0\n"
    program += "for step in range(first, 40):\n    print('step', step + 1, flush=True)\n"
    program += "    time.sleep(0.03)\n    pathlib.Path('new').write_text(str(step + 1))\n    os.replace('new', kept)\n"
    (project.directory / "train.py").write_text(program)
    tests = """
@pytest.mark.parametrize("arguments", ["reads", ""])
def test_resumes(assert_resumes, arguments):
    assert_resumes(command=f"python train.py {arguments}", workers=1)
"""
    code, out = project.run(tests)
    assert (code, "1 failed, 1 passed" in out) == (1, True), out
    assert "no checkpoint was read, though step.json had been written" in out


@pytest.mark.thorough
def test_in_parallel(project: Project) -> None:
    tests = """
@pytest.mark.parametrize("number", range(4))
@pytest.mark.tflaunch(worker=2)
def test_number(number):
    assert number != 2
"""
    code, out = project.run(tests, "-n", "2")
    assert (code, "1 failed, 3 passed" in out) == (1, True), out
    code, out = project.run("@pytest.mark.tflaunch\ndef test_a(): assert 0\n" + HANGS.format(timeout=9999), "-x")
    assert (code, "1 failed in" in out) == (1, True), out  # the first failure ends all


@pytest.mark.parametrize("how", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.thorough)])
def test_nothing_is_left_when_pytest_is_ended(project: Project, how: signal.Signals) -> None:
    process = project.start(HANGS.format(timeout=9999))
    wait_until(lambda: len(os.listdir(project.marks)) == 2)
    process.send_signal(how)
    out, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode != 0
    assert ("KeyboardInterrupt" in out) == (how == signal.SIGINT)
    wait_until(lambda: not project.processes())


@pytest.mark.thorough
def test_what_a_test_has_imported_is_kept_for_the_next(project: Project) -> None:
    """For this session only; a test that sets a variable which is read during imports is started as usual."""
    tests = """
from tflaunch_worker.features.preload import warm_client

@pytest.fixture(autouse=True)
def uses(tflaunch_home, number):
    yield
    if "TFLAUNCH_TASK" not in os.environ:
        servers = warm_client.living_servers(os.environ["TFLAUNCH_WARM_DIR"]).values()
        pathlib.Path(os.environ["MARKS"], str(number)).write_text(str([server["uses"] for server in servers]))

@pytest.mark.parametrize("number", range(3))
@pytest.mark.tflaunch(worker=2)
def test_number(number):
    assert os.environ["TFLAUNCH_PRELOAD"].partition(":")[0] == PRELOAD
"""

    def uses(preload: str, text: str) -> list[str]:
        code, out = project.run(f"PRELOAD = {preload!r}\n{text}{tests}")
        assert code == 0, out
        wait_until(lambda: not project.processes())
        return [(project.marks / str(number)).read_text() for number in range(3)]

    assert uses("pytest", "") == ["[0]", "[1]", "[2]"]
    assert uses("no", "def later(): os.environ['TF_X'] = '1'\n") == ["[]", "[]", "[]"]


def test_it_costs_nothing_until_it_is_used() -> None:
    slow = ("click", "pydantic", "psutil", "tensorflow")
    program = f"import sys, tflaunch.testing; print([name for name in {slow} if name in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", program], text=True) == "[]\n"
