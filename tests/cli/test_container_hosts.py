"""Container hosts, with a `docker exec` that is this machine with a different environment."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from support.launch import Launch

pytestmark = pytest.mark.cli

EXEC = """#!/bin/sh
shift 3  # exec --interactive NAME
exec env -i HOME={home} PATH={path} LD_LIBRARY_PATH=/own/lib TFLAUNCH_HOME={home}/own TFLAUNCH_SET=OTHER "$@"
"""


def test_a_task_inherits_what_docker_exec_gives(launch: Launch) -> None:
    """Its PATH and tflaunch's directory are the container's; nothing is the launcher's."""
    directory, home = launch.directory / "bin", launch.directory / "in the container"
    for made in (directory, home):
        made.mkdir()
    path = f"/own/bin:{Path(sys.executable).parent}:/usr/bin:/bin"
    (directory / "docker").write_text(EXEC.format(home=f"'{home}'", path=path))
    (directory / "docker").chmod(0o755)
    launch.env |= {"PATH": f"{directory}:{launch.env['PATH']}", "OF_THE_LAUNCHER": "yes"}
    script = 'echo "$PATH $LD_LIBRARY_PATH ${OF_THE_LAUNCHER-none} ${TFLAUNCH_SET-none} $TFLAUNCH_TASK_DIR"'
    hosts = {"c1": {"docker": "c1", "workdir": "/"}}
    ended = launch.up(
        launch.spec(cluster={"worker": ["c1"]}, hosts=hosts, strategy="none", command=["sh", "-c", script])
    )
    assert ended.returncode == 0, ended.stderr
    assert f"{path} /own/lib none " in ended.stdout
    assert f" {home}/own/runs/" in ended.stdout
    assert "OTHER" not in ended.stdout
