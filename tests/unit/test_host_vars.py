"""What a plan leaves to the host: its own variables, and shares of its resources."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tflaunch_worker import host_vars
from tflaunch_worker.host_vars import UnknownValueError, expand, expand_path
from tflaunch_worker.inspect import cores

pytestmark = pytest.mark.unit

KNOWN = {"SCRATCH": "/fast", "TFLAUNCH_CORES": "7", "GPUS": "3, GPU-8a,7"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain ${SCRATCH}", "plain ${SCRATCH}"),
        ("${host:SCRATCH}/data:${host:SCRATCH}", "/fast/data:/fast"),
        ("${host:TFLAUNCH_CORES}", "7"),
        ("${host:TFLAUNCH_CORES/2}", "3"),
        ("${host:TFLAUNCH_CORES/8}", "1"),
        ("${host:TFLAUNCH_CORES/0}", "${host:TFLAUNCH_CORES/0}"),
        ("${host:GPUS[0:1]}", "3"),
        ("${host:GPUS[1:3]}", "GPU-8a,7"),
        ("${host:GPUS[1:1]}", ""),
        ("${host:GPUS[1]}", "${host:GPUS[1]}"),
        ("$${host:SCRATCH} $$${host:GPUS[0:1]}", "${host:SCRATCH} $${host:GPUS[0:1]}"),
    ],
)
def test_references_are_replaced(text: str, expected: str) -> None:
    """A share is rounded down, and at least 1."""
    assert expand(text, KNOWN) == expected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("${host:NO}", "'NO' is not set"),
        ("${host:SCRATCH/2}", "is not a number"),
        ("${host:GPUS[2:4]}", "has 3 entries on this host, and 4 are wanted"),
    ],
)
def test_what_the_host_does_not_have_is_said(text: str, said: str) -> None:
    with pytest.raises(UnknownValueError, match=said):
        expand(text, KNOWN)


def test_the_home_directory_is_the_hosts_own() -> None:
    """`~` is expanded only at the start of a path."""
    assert expand_path("~/x", KNOWN) == os.path.expanduser("~/x")
    assert expand_path("a~/x", KNOWN) == "a~/x"


def _interpreter(directory: Path, *names: str) -> str:
    for name in names:
        (directory / "bin").mkdir(parents=True, exist_ok=True)
        (directory / "bin" / name).write_text("")
        (directory / "bin" / name).chmod(0o755)
    return str(directory / "bin" / names[0])


def test_python_is_the_one_that_runs_the_agent(tmp_path: Path) -> None:
    """Its directory comes first on PATH, unless `python` and `python3` are found there already."""
    ours = _interpreter(tmp_path / "ours", "python3", "python")
    other = str(Path(_interpreter(tmp_path / "other", "python3")).parent)
    directory = str(Path(ours).parent)
    assert host_vars.with_python_first(f"/none:{other}", ours) == f"{directory}:/none:{other}"
    assert host_vars.with_python_first(f"{other}:{directory}", ours) == f"{directory}:{other}:{directory}"
    assert host_vars.with_python_first(f"/none:{directory}:{other}", ours) == f"/none:{directory}:{other}"
    assert host_vars.with_python_first("/none", "") == "/none"


def test_a_login_gives_a_task_who_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("USER", "ann")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/theirs")
    env = host_vars.bare_environment("/opt/none/python3")
    assert (env["USER"], env["LANG"]) == ("ann", "C.UTF-8")
    assert env["PATH"] == "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    assert set(env) <= {"HOME", "USER", "LOGNAME", "SHELL", "PATH", "LANG"}


def test_what_another_task_was_told_is_not_inherited() -> None:
    """A container or a shell may have it set; everything else is inherited."""
    environ = {"TFLAUNCH_RUN": "r", "TFLAUNCH_SET": "X", "TFLAUNCH_HOME": "/h", "LD_LIBRARY_PATH": "/l"}
    assert host_vars.inherited(environ) == {"TFLAUNCH_HOME": "/h", "LD_LIBRARY_PATH": "/l"}


def test_cores_are_those_that_this_process_may_use() -> None:
    """The affinity counts, not the number of cores of the machine."""
    before = os.sched_getaffinity(0)
    assert 1 <= cores.usable() <= len(before)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert cores.usable() == 1
    finally:
        os.sched_setaffinity(0, before)
