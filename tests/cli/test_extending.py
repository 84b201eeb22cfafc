"""Packages add rooms: that of docs/extending.md works, and one that fails costs no run."""

from __future__ import annotations

import pytest

from support.documents import blocks, run_block, shell_of
from support.launch import PATIENCE, Launch, read_until
from support.packages import install
from support.specs import REPOSITORY
from tflaunch.client.control_client import ControlClient
from tflaunch.errors import TflaunchError

pytestmark = pytest.mark.cli

PAGE = REPOSITORY / "docs" / "extending.md"


PROJECT = """
[project]
name = "tflaunch-broken"
version = "1.0"

[project.entry-points."tflaunch.rooms"]
broken = "tflaunch_broken:ROOM"
"""


def test_the_package_of_the_page_works(launch: Launch) -> None:
    """Its commands print what the page shows."""
    page = list(blocks(PAGE))
    install(launch, {block.file: block.text for block in page if block.file})
    (commands,) = (block for block in page if block.kind == "console")
    run_block(commands._replace(mark=""), lambda *_: None, shell_of(launch))


BROKEN = """
from tflaunch.rooms import Room, Watching, always
from tflaunch.runtime.watchers import Watcher

class Broken(Watcher):
    def {moment}(self, *about):
        raise KeyError("lost")

def columns(directory, status):
    raise KeyError("lost")

ROOM = Room(columns="tflaunch_broken:columns", watchers=(Watching("tflaunch_broken:Broken", always, ("broken",)),))
"""


@pytest.mark.parametrize("moment", ["__init__", "begin", "watch", "finish", "judge", "close", "follow_up"])
def test_a_package_that_fails_costs_no_run(launch: Launch, moment: str) -> None:
    """One sentence says that it is left out."""
    install(launch, {"tflaunch_broken.py": BROKEN.format(moment=moment), "pyproject.toml": PROJECT})
    ended = launch.run("up", launch.shell("exit 7", workers=1, strategy="none", restart={"max": 0}))
    told = [line for line in ended.stderr.splitlines() if "tflaunch_broken" in line]
    sentence = "tflaunch: warning: tflaunch_broken:Broken is left out, as it has failed: KeyError('lost')"
    assert (ended.returncode, told) == (7, [sentence]), ended.stderr
    shown = launch.run("ps")
    assert shown.returncode == 0
    assert shown.stderr == "tflaunch: tflaunch_broken:columns is left out, as it has failed: KeyError('lost')\n"


def test_a_package_that_fails_at_a_request(launch: Launch) -> None:
    """The request is refused, and the run goes on."""
    install(launch, {"tflaunch_broken.py": BROKEN.format(moment="answer"), "pyproject.toml": PROJECT})
    process = launch.start("up", launch.shell("echo up; until test -e go; do sleep 0.05; done", workers=1))
    read_until(process, "| up")
    (directory,) = launch.home.glob("runs/*")
    with pytest.raises(TflaunchError, match="tflaunch_broken:Broken is left out, as it has failed"):
        ControlClient(directory).ask("broken")
    (launch.directory / "go").touch()
    _, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, "left out" in err) == (0, True)
