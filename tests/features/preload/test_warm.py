"""`warm` in a spec, and what `tflaunch warm` and `ps` say of the processes that it leaves."""

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.launch import Launch
from support.waiting import wait_gone

pytestmark = pytest.mark.api

PROGRAM = "import os, mine; print('imported by', mine.pid, mine.value)"


@pytest.fixture
def spec(launch: Launch) -> Iterator[Path]:
    """A spec whose tasks import a module that is kept; its servers are ended."""
    module = launch.directory / "lib/mine.py"
    module.parent.mkdir()
    module.write_text("import os\npid, value = os.getpid(), 'one'\n")
    module.with_name("changes.py").write_text("open(__file__, 'a').close()\nopen(__file__, 'a').write('#')\n")
    launch.preload = None
    launch.env["PYTHONPATH"] = str(module.parent)
    command = [sys.executable, "-c", PROGRAM]
    yield launch.spec(cluster={"worker": 2}, command=command, preload=["mine"], warm="10m")
    launch.run("warm", "--stop")


def run(launch: Launch, spec: Path, *arguments: str) -> set[str]:
    """Run a job; return what its tasks print."""
    ended = launch.succeed("up", spec, *arguments)
    return {line.partition("imported by ")[2] for line in ended.stdout.splitlines()}


def servers(launch: Launch) -> list[dict[str, Any]]:
    """Return what `tflaunch warm --json` shows."""
    shown: list[dict[str, Any]] = json.loads(launch.run("warm", "--json").stdout)
    return shown


def test_a_later_run_finds_everything_imported(launch: Launch, spec: Path) -> None:
    """`warm` lists what the first run has left, `ps` says what it costs, and `warm --stop` ends it."""
    assert launch.run("warm").stderr.startswith("tflaunch: no warm servers")
    first = run(launch, spec)
    (server,) = servers(launch)
    assert first == {f"{server['pid']} one"}
    assert (server["modules"], server["uses"]) == (["mine"], 0)
    assert server["memory_bytes"] > 1_000_000
    assert 0 < server["idle_left"] <= 600
    assert run(launch, spec) == first
    assert run(launch, spec, "--name", "other") == first
    assert servers(launch)[0]["uses"] == 2
    assert f"localhost  {sys.executable}  mine " in launch.run("warm").stdout
    assert launch.run("warm", "--stop").stderr == "tflaunch: ended 1 warm server\n"
    wait_gone(server["pid"])
    assert run(launch, spec) != first


def test_the_first_run_is_warm_if_servers_were_started(launch: Launch, spec: Path) -> None:
    """For a spec, and for what `run` would start; the run that has imported leaves nothing else."""
    data = json.loads(spec.read_text())
    del data["warm"]
    spec.write_text(json.dumps(data))
    options = "--modules", "mine", "--workers", "2", "--python", sys.executable
    for started in ((str(spec), "--for", "2m"), options):
        ended = launch.succeed("warm", *started, "--json")
        (server,) = json.loads(ended.stdout)
        assert (server["host"], server["modules"], server["uses"]) == ("localhost", ["mine"], 0)
        assert run(launch, spec, "--set", "warm=1m") == {f"{server['pid']} one"}
        assert len(list((launch.home / "runs").iterdir())) == 1
        assert json.loads(launch.run("warm", "--list", spec, "--json").stdout)[0]["uses"] == 1
        assert launch.run("warm", "--stop", spec).stderr == "tflaunch: ended 1 warm server\n"
        assert not servers(launch)
        shutil.rmtree(launch.home / "runs")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--modules", "not_there"], "no warm server stays on localhost: not_there could not be imported: ModuleNotF"),
        (["--modules", "changes"], "no warm server has stayed: its process has ended with the run"),
        (["SPEC", "--set", "command=sh train.sh"], "no warm server can stay on localhost: its commands are not Python"),
        (["SPEC", "--set", "workdir=missing"], "the modules could not be imported"),
        (["SPEC", "--python", "python3"], "SPEC says which interpreter and cluster"),
        (["--stop", "--for", "1m"], "--list and --stop take no other options"),
    ],
)
def test_a_server_that_cannot_be_started(launch: Launch, spec: Path, arguments: list[str], sentence: str) -> None:
    ended = launch.run("warm", *(str(spec) if word == "SPEC" else word for word in arguments))
    assert sentence in ended.stderr
    assert (ended.returncode != 0, "Traceback" in ended.stderr, servers(launch)) == (True, False, [])
