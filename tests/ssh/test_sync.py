"""`sync`: the user's code on hosts over SSH."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from support.launch import Launch
from support.sshd import Sshd, StartSshd, home_for_client
from tflaunch.errors import EXIT_INTERNAL

STATE = ".local/state/tflaunch"
QUICK = {"max": 0}


def synced(launch: Launch, hosts: Mapping[str, Sshd], /, *command: str, **fields: Any) -> Path:
    """Write a spec next to the user's code, with a task on every host that runs a command there."""
    if not launch.env.get("HOME", "").startswith(str(launch.directory)):
        launch.env["HOME"] = str(home_for_client(launch.directory / "user", hosts))
    (launch.directory / "project").mkdir(exist_ok=True)
    spec = {"cluster": {"worker": [*hosts]}, "strategy": "none", "command": command, "sync": {}, "restart": QUICK}
    return launch.spec("project/job.json", **{**spec, **fields})


def write(launch: Launch, **contents: str | bytes) -> None:
    """Write files of the project; in a name, a double underscore means a slash, `_py` means `.py`."""
    for name, content in contents.items():
        path = launch.directory / "project" / name.replace("__", "/").replace("_py", ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)


def code_on(host: Sshd) -> list[Path]:
    """Return the code directories that runs have left on a host, oldest first."""
    return sorted((host.home / STATE).glob("runs/*/agents/*/code"), key=lambda path: path.stat().st_mtime_ns)


def files_below(directory: Path) -> set[str]:
    return {path.relative_to(directory).as_posix() for path in directory.rglob("*") if not path.is_dir()}


def test_a_program_runs_on_hosts_that_had_nothing_of_it(launch: Launch, sshd: StartSshd) -> None:
    """Package, data and mode bits; the tasks' directory is the spec's; nothing is written elsewhere."""
    hosts = {"h1": sshd(), "h2": sshd()}
    write(
        launch,
        train_py="from pkg.model import words; import os; print(words(), os.getcwd())\n"
        "open('result', 'w').write('1')\n",
        pkg____init___py="",
        pkg__model_py="import pathlib\nfrom .names import NAME\n"
        "def words(): return NAME + pathlib.Path('data/words').read_text()\n",
        pkg__names_py="NAME = 'hello '\n",
        data__words="from data",
        tool="#!/bin/sh\nexec python3 train.py\n",
        old_pyc="x",
    )
    (launch.directory / "project/tool").chmod(0o755)
    (launch.directory / "project/same").symlink_to("data")
    if os.geteuid() == 0:  # whoever wrote them here, they belong to the user of the host there
        for path in (launch.directory / "project").rglob("*"):
            os.lchown(path, 12345, 12345)
    launch.succeed("up", synced(launch, hosts, "./tool"))
    for index, host in enumerate(hosts.values()):
        assert not host.wait_empty()  # a guard may lag a moment behind its supervisor
        (code,) = code_on(host)
        assert f"hello from data {code}" in launch.log(f"worker:{index}")
        assert (code / "result").read_text() == "1"
        assert (code / "tool").stat().st_mode & 0o777 == 0o755
        assert (code / "same/words").read_text() == "from data"
        assert {path.lstat().st_uid for path in (host.home / STATE).rglob("*")} == {os.geteuid()}
        elsewhere = {path for path in files_below(host.home) if not path.startswith(f"{STATE}/")}
        assert not elsewhere
        state = files_below(host.home / STATE)
        assert {path.split("/")[0] for path in state} == {"agents", "files", "runs"}
        mine = code.relative_to(host.home / STATE).as_posix()
        assert all(path.startswith(mine) for path in state if path.startswith("runs/")), state
        for private in (host.home / STATE, host.home / STATE / "files", code.parent, code):
            assert private.stat().st_mode & 0o777 == 0o700


def test_prune_removes_the_copies_on_the_hosts_of_a_run(launch: Launch, sshd: StartSshd) -> None:
    """Only with --hosts; the run stays while a host cannot be reached."""
    hosts = {"h1": sshd(), "h2": sshd()}
    write(launch, train_py="print(1)")
    assert launch.up(synced(launch, hosts, "python3", "train.py")).returncode == 0
    (run,) = (path for path in (launch.home / "runs").iterdir() if path.is_dir())
    old = ("prune", "--keep", 0, "--older-than", "0s", "--hosts")
    assert "its code on h1, h2" in launch.run(*old, "--dry-run").stdout
    hosts["h2"].stop_listening()
    refused = launch.run(*old, "--yes", code=EXIT_INTERNAL)
    assert "its code stays on h2: " in refused.stderr
    assert run.exists()
    assert not code_on(hosts["h1"])
    hosts["h2"].start()
    launch.succeed(*old, "--yes")
    assert not code_on(hosts["h2"])
    assert not run.exists()


def test_hosts_are_set_up_from_the_code_that_they_got(launch: Launch, sshd: StartSshd) -> None:
    """Both at once; the next run uses what is there, though its code is elsewhere."""
    hosts = {"h1": sshd(), "h2": sshd()}
    write(launch, words="#!/bin/sh\necho $0 says: one\n")
    makes = ["mkdir -p .venv/bin && cp words .venv/bin/tool && chmod +x .venv/bin/tool", "echo made >>~/made"]
    spec = synced(launch, hosts, "tool", setup=makes, setup_files=["words"])
    for _ in range(2):
        lines = launch.up(spec, code=0).stdout.splitlines()
        assert [line.partition(" says: ")[2] for line in lines] == ["one", "one"]
    assert [(host.home / "made").read_text() for host in hosts.values()] == ["made\n", "made\n"]
    assert all(len(list((host.home / STATE).glob("setups/*/build-*/.venv"))) == 1 for host in hosts.values())


DRILLED = """
import os, pathlib, time
kept = pathlib.Path("step.json")
first = int(kept.read_text()) if kept.exists() and "forget" not in os.environ else 0
for step in range(first, 40):
    print("step", step + 1, "loss", 1 / (step + 1), flush=True)
    kept.with_suffix(".new").write_text(str(step + 1))
    kept.with_suffix(".new").replace(kept)
    time.sleep(0.05)
"""


@pytest.mark.thorough
@pytest.mark.parametrize(("env", "verdict", "code"), [({}, "proved", 0), ({"forget": "1"}, "not proved", 1)])
def test_a_drill_trains_in_copies_on_hosts_and_removes_them(
    launch: Launch, sshd: StartSshd, env: dict[str, str], verdict: str, code: int
) -> None:
    hosts = {"h1": sshd(), "h2": sshd()}
    write(launch, train_py=DRILLED)
    spec = synced(launch, hosts, "python3", "train.py", env=env, restart={"backoff": [0, 0]})
    ended = launch.run("drill", spec, "--json", code=code)
    found = json.loads(ended.stdout)
    assert found["verdict"] == verdict
    assert [each["kind"] for each in found["drills"][0]["findings"]] == ["began_again" if code else "resumed"]
    assert [code_on(host) for host in hosts.values()] == [[], []]
