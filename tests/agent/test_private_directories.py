"""An agent's directories are private, whatever the umask; insecure ones are refused in one sentence."""

from __future__ import annotations

import os
import shutil
import stat
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from support.processes import all_processes
from support.waiting import wait_until
from tflaunch.plan.model import HostPlan
from tflaunch.transport.base import AgentGoneError, Link, LinkError
from tflaunch.transport.command import CommandAccess, CommandConnector, CommandConnectors
from tflaunch.transport.local import LocalConnector

pytestmark = pytest.mark.agent

PARTS = ("runs", "test", "agents", "here")
UMASK = CommandAccess(("/bin/sh", "-c", 'umask 000; exec "$@"', "sh"))


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A missing directory for all of tflaunch's files, below a missing parent."""
    return tmp_path / "state" / "tflaunch"


@pytest.fixture
def connector(home: Path) -> CommandConnector:
    """A connector whose agent is started by a shell with umask 000."""
    return CommandConnector(CommandConnectors("test", 120.0), HostPlan("here", is_local=False, home=str(home)), UMASK)


def end(connector: CommandConnector, link: Link) -> None:
    """End an agent that has received nothing."""
    link.close()
    for _ in range(1000):
        try:
            connector.resume().close()
        except AgentGoneError:
            return
        except LinkError:
            continue  # it is ending
    pytest.fail("it does not end")


def modes(home: Path) -> dict[str, int]:
    """Return the modes of all directories from a home's parent downwards."""
    places = [home.parent, *(Path(place) for place, _, _ in os.walk(home))]
    return {str(place): stat.S_IMODE(place.stat().st_mode) for place in places}


def test_all_are_made_private(home: Path, connector: CommandConnector) -> None:
    """Including those on the path to the agent's own, and missing parents of our home."""
    link = connector.open()
    assert set(modes(home).values()) == {0o700}
    assert home.joinpath(*PARTS).is_dir()
    end(connector, link)


@pytest.mark.parametrize("depth", range(len(PARTS) + 1))
def test_one_that_others_can_write_to_is_refused(home: Path, connector: CommandConnector, depth: int) -> None:
    """Anywhere between our home and the agent's directory: both to start an agent and to find it again."""
    home.joinpath(*PARTS).mkdir(parents=True)
    for deep in range(len(PARTS) + 1):
        home.joinpath(*PARTS[:deep]).chmod(0o700)
    place = home.joinpath(*PARTS[:depth])
    place.chmod(0o777)
    for reach in (connector.open, connector.resume):
        with pytest.raises(LinkError) as refused:
            reach()
        assert f"{place} can be written to by others (mode 0777; chmod 700 is enough)" in str(refused.value)


def test_those_of_this_machine_are_private_too(home: Path) -> None:
    """An agent that is started without a link to another machine."""
    before = os.umask(0)
    try:
        connector = LocalConnector(home.joinpath(*PARTS), "test")
        link = connector.open()
    finally:
        os.umask(before)
    assert set(modes(home).values()) == {0o700}
    link.close()
    connector.end()


PATHS = "PATH=/usr/bin:/bin"


def is_of(process: psutil.Process, user: int) -> bool:
    """Return whether a process runs as a user; a zombie does not run."""
    with suppress(psutil.NoSuchProcess):
        return process.uids().real == user and process.status() != psutil.STATUS_ZOMBIE
    return False


@pytest.mark.skipif(os.getuid() != 0, reason="it becomes another user")
@pytest.mark.parametrize(("user", "env"), [(5, ("HOME=/", PATHS)), (54322, ("-i", PATHS))])
def test_a_user_without_a_home_has_a_private_directory_below_tmp(user: int, env: tuple[str, ...]) -> None:
    """Also one without an entry in the user database."""
    here = HostPlan("here", is_local=False)
    words = ("setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "env", *env)
    nowhere = CommandConnector(CommandConnectors("test", 120.0), here, CommandAccess(words))
    home = Path(f"/tmp/tflaunch-{user}")
    try:
        end(nowhere, nowhere.open())
        assert [place for place, mode in modes(home).items() if mode != 0o700] == [str(home.parent)]
    finally:
        # An agent that is ending may still import a module, and make its cache in what is removed here.
        wait_until(lambda: not any(is_of(process, user) for process in all_processes()))
        shutil.rmtree(home, ignore_errors=True)
