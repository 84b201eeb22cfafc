"""Processes of tflaunch never import from the working directory, in which a module of any name may lie."""

import subprocess
import sys
from typing import Any

import pytest

from support.launch import Launch

MODULES = ("click", "fnmatch", "json", "queue", "shlex", "threading", "tflaunch_worker", "pydantic", "uvicorn")
PLANTED = """import sys
with open({log!r}, "a") as log:
    print({name!r}, [*sys.argv], file=log)
raise SystemExit("imported from the working directory")
"""


@pytest.fixture
def planted(launch: Launch) -> Launch:
    """A working directory with modules that note their import and end the process."""
    for name in MODULES:
        text = PLANTED.format(log=str(launch.directory / "imported"), name=name)
        (launch.directory / f"{name}.py").write_text(text)
    return launch


def imported(launch: Launch) -> str:
    """Return which of the planted modules were imported, by which process."""
    log = launch.directory / "imported"
    return log.read_text() if log.exists() else ""


COMMANDS = {
    "python -m tflaunch": "{python} -m tflaunch up -d job.json && {python} -m tflaunch wait",
    "up --queue": "tflaunch up --queue job.json && tflaunch wait",
    "rerun": "tflaunch up job.json && tflaunch rerun -d",
    "doctor": "tflaunch doctor python.json; true",
    "preload": "tflaunch up --set 'preload=[\"decimal\"]' python.json",
    "warm": "tflaunch warm --preload decimal; tflaunch warm --stop",
    "exec": "tflaunch up -d lasting.json && tflaunch exec worker:0 -- true && tflaunch down",
    "api": "cd sub && PYTHONPATH= {python} program.py",
}


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(words, id=name, marks=() if name in ("up --queue", "exec") else pytest.mark.thorough)
        for name, words in COMMANDS.items()
    ],
)
def test_a_process_of_ours_imports_nothing_from_the_working_directory(planted: Launch, command: str) -> None:
    sub = planted.directory / "sub"
    sub.mkdir()
    (sub / "train.py").write_text("print('trained')")
    job: dict[str, Any] = {"cluster": {"worker": 1}, "strategy": "none", "restart": {"max": 0}}
    planted.spec(**job, command=["echo", "ran"])
    planted.spec("lasting.json", **job, command=["sleep", "9999"])
    planted.spec("python.json", **job, command=["python3", "sub/train.py"])
    (sub / "program.py").write_text(
        "import os, tflaunch\n"
        "os.chdir('..')\n"
        "assert tflaunch.run({'cluster': {'worker': 1}, 'strategy': 'none', 'command': ['echo']}).exit_code == 0\n"
    )
    ended = planted.paste(command.format(python=sys.executable))
    assert imported(planted) == ""
    assert ended.returncode == 0, ended.stderr
    subprocess.run([sys.executable, "-c", "import json"], cwd=planted.directory, check=False)
    assert "json" in imported(planted), "by a Python that searches the working directory"
