"""Engines of discovery: hosts and the connection to them come from another package."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from support.launch import PATIENCE, Launch, read_until
from support.packages import install

pytestmark = pytest.mark.agent

PROJECT = """
[project]
name = "tflaunch-rooms"
version = "1.0"

[project.entry-points."GROUP"]
rooms = "tflaunch_rooms:ROOM"
"""
DECLARED = """
from tflaunch.rooms import Room

ROOM = Room(discover={"rooms": "rooms_engine:Rooms"})
"""
ROOMS = '''
from tflaunch.discovery.base import Engine, Found, NotFoundError

class Rooms(Engine):
    """Directories that are homes of hosts on this machine."""

    holds = {holds}

    def find(self, where, directory):
        rooms = sorted(path.name for path in (directory / where).glob("room*"))
        if not rooms:
            raise NotFoundError(f"{{where}} has no room", "build one")
        return Found(rooms, str(directory / where))

    def words(self, host, handle):
        return ["env", f"HOME={{handle}}/{{host}}"]
'''


def install_rooms(launch: Launch, engine: str, group: str = "tflaunch.rooms") -> None:
    """Install a package that declares an engine, whose module has this source."""
    project = PROJECT.replace("GROUP", group)
    install(launch, {"tflaunch_rooms.py": DECLARED, "rooms_engine.py": engine, "pyproject.toml": project})


@pytest.fixture(params=[False, True], ids=["leaves agents", "holds them"])
def rooms(launch: Launch, tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """Install the package, and make two rooms."""
    install_rooms(launch, ROOMS.format(holds=request.param))
    house = tmp_path / "house"
    for name in ("room1", "room2"):
        (house / name).mkdir(parents=True)
    return house


def spec(launch: Launch, script: str, **fields: object) -> Path:
    """Write a spec with a worker in each room."""
    about: dict[str, Any] = {"hosts": {"discover": "rooms:house"}, "cluster": {"worker": 2}, "strategy": "none"}
    return launch.spec(**{**about, "command": ["sh", "-c", script], "workdir": str(launch.directory), **fields})


def test_tasks_run_there(launch: Launch, rooms: Path) -> None:
    """With the host's own home; and nothing is left behind."""
    ended = launch.up(spec(launch, "echo at $HOME"))
    assert ended.returncode == 0, ended.stderr
    assert f"at {rooms}/room1" in ended.stdout
    assert f"at {rooms}/room2" in ended.stdout
    assert [host["engine"] for host in _plan(launch)["hosts"]] == [f"rooms:{rooms}"] * 2


def test_another_supervisor_finds_them(launch: Launch, rooms: Path) -> None:
    """After the first was killed; the tasks do not notice."""
    script = "touch $TFLAUNCH_TASK.up; until [ -e go ]; do sleep 0.05; done; echo went"
    up = launch.start("up", spec(launch, f"echo up; {script}"))
    read_until(up, "up", 2)
    up.kill()
    up.communicate()
    resumed = launch.start("up", "--resume", launch.run_directory().name, "-d")
    _, err = resumed.communicate(timeout=PATIENCE)
    assert resumed.returncode == 0, err
    (launch.directory / "go").touch()
    waiting = launch.run("wait")
    assert waiting.returncode == 0, waiting.stderr
    out = launch.run("logs").stdout
    assert out.count("went") == 2
    assert "attempt 1" not in err


def test_a_link_that_is_cut_is_made_anew(launch: Launch, rooms: Path) -> None:
    """Through another command; the agent lives as long as a command holds it."""
    script = f"until grep -qs fault_injected {launch.home}/runs/*/events.jsonl; do sleep 0.05; done; sleep 1; echo done"
    ended = launch.up(spec(launch, script, timeouts={"lease": 60}), "--drill", "cut host=room2 for 0.5s after 0.5s")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("done") == 2


def test_ctrl_c_leaves_nothing(launch: Launch, rooms: Path) -> None:
    """Including tasks that ignore signals."""
    up = launch.start("up", spec(launch, "trap '' TERM; echo up; while :; do sleep 0.1; done", timeouts={"grace": 0.3}))
    read_until(up, "up", 2)
    up.send_signal(signal.SIGINT)
    _, err = up.communicate(timeout=PATIENCE)
    assert up.returncode == 130, err


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ("rooms:nosuch", "hosts.discover: nosuch has no room; build one"),
        ("doors:house", "there is no engine 'doors'; use one of dns, exec, file, rooms, slurm"),
        ("Rooms house", "hosts.discover"),
    ],
)
def test_what_is_wrong_is_said(launch: Launch, rooms: Path, where: str, words: str) -> None:
    """In one sentence, with the location."""
    path = spec(launch, "true", hosts={"discover": where})
    for verb in ("up", "plan"):
        ended = launch.run(verb, path)
        assert ended.returncode == 2
        assert words in ended.stderr, ended.stderr
        assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    ("group", "words"),
    [
        (
            "tflaunch.rooms",
            "cannot be imported: No module named 'nosuchmodule'; mend rooms_engine:Rooms",
        ),
        ("tflaunch.discovery", "or have tflaunch-rooms name it in `discover` of a Room (docs/extending.md)"),
    ],
)
def test_a_package_whose_engine_cannot_be_used_is_named(launch: Launch, group: str, words: str) -> None:
    """With what to mend: an import, or the entry point that tflaunch 0.2 read."""
    install_rooms(launch, "import nosuchmodule\n", group)
    ended = launch.run("check", spec(launch, "true"))
    assert ended.returncode == 2
    assert words in ended.stdout


def _plan(launch: Launch) -> dict[str, list[dict[str, object]]]:
    found: dict[str, list[dict[str, object]]] = json.loads((launch.run_directory() / "plan.json").read_text())
    return found
