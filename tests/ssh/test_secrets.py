"""Secrets of tasks on hosts over SSH: in no file and on no command line."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from support.launch import PATIENCE, Launch, read_until
from support.netns_hosts import Bed
from support.processes import all_processes, command_of

pytestmark = pytest.mark.ssh

VALUE, TOKEN = "s3cret-of-a-variable", "t0ken-of-a-variable"
DIGEST = hashlib.sha256(VALUE.encode()).hexdigest()
"""How a key in a file would end its first line; certificates may be told."""


def content_of(path: Path) -> bytes:
    """Return what is in a file; nothing if it has been removed."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


def test_nothing_on_a_host_shows_them(bed: Bed, launch: Launch, tmp_path: Path) -> None:
    """While tasks that have them run; nor do the files of the launcher. No variable stands on a command line."""
    bed.control(launch).env["LAUNCHER_KEY"] = VALUE
    enough = tmp_path / "enough"
    script = f'printf %s "$API_KEY" | sha256sum; until test -e {enough}; do sleep 0.05; done'
    fields: dict[str, Any] = {"secrets": {"API_KEY": {"env": "LAUNCHER_KEY"}}, "env": {"TOKEN": TOKEN}}
    cluster, command = {"worker": ["h1", "h2"]}, ["sh", "-c", script]
    running = launch.start("up", launch.spec(cluster=cluster, strategy="none", command=command, **fields))
    read_until(running, DIGEST, 2)
    places = [launch.home, *(bed.home_of(i) for i in (1, 2))]
    files = [path for place in places for path in place.rglob("*") if path.is_file()]
    assert any(path.name == "plan.json" for path in files)
    assert any("tflaunch_worker" in path.parts for path in files)
    shown = {str(path): content_of(path) for path in files}
    lines = {str(process): "\0".join(process.cmdline).encode() for process in bed.processes()}
    lines |= {str(process): "\0".join(command_of(process)).encode() for process in all_processes()}
    assert not [process for process, line in lines.items() if TOKEN.encode() in line], "a value of `env`"
    shown |= lines
    assert not [place for place, data in shown.items() if VALUE.encode() in data]
    enough.touch()
    _, err = running.communicate(timeout=PATIENCE)
    assert running.returncode == 0, err
