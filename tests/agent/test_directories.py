"""Where tflaunch keeps its files: private directories, whatever user and umask, and an agent's modules in its cache."""

import os
import select
import shutil
import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from support.agent_client import Talk
from support.waiting import PATIENCE, wait_gone, wait_until
from tflaunch.features.commands.command_link import CommandAccess, CommandConnector, CommandConnectors
from tflaunch.plan.model import HostPlan
from tflaunch.transport.base import AgentGoneError, Link, LinkError
from tflaunch.transport.local import LocalConnector
from tflaunch_worker import boot, process_state

PARTS = ("runs", "test", "agents", "here")
MODULE = "tflaunch_worker/agent/agent.py"
UMASK = CommandAccess(("/bin/sh", "-c", 'umask 000; exec "$@"', "sh"))


def connector_to(home: Path, run: str = "test", access: CommandAccess = UMASK) -> CommandConnector:
    """Return a connector for a host with this home whose shell has no umask."""
    host = HostPlan("here", is_local=False, home=str(home))
    return CommandConnector(CommandConnectors(run, PATIENCE), host, access)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A missing directory for all of tflaunch's files, below a missing parent."""
    return tmp_path / "state" / "tflaunch"


def end(connector: CommandConnector, link: Link) -> None:
    """End an agent that has received nothing."""
    link.close()

    def is_gone() -> bool:
        try:
            connector.resume().close()
        except AgentGoneError:
            return True
        except LinkError:
            pass  # it is ending
        return False

    wait_until(is_gone)


def modes(home: Path) -> dict[str, int]:
    places = [home.parent, *(Path(place) for place, _, _ in os.walk(home))]
    return {str(place): stat.S_IMODE(place.stat().st_mode) for place in places}


def test_all_are_made_private(home: Path) -> None:
    """Including those on the path to the agent's own, and missing parents of our home."""
    connector = connector_to(home)
    link = connector.open()
    assert set(modes(home).values()) == {0o700}
    assert home.joinpath(*PARTS).is_dir()
    end(connector, link)


@pytest.mark.parametrize("depth", range(len(PARTS) + 1))
def test_one_that_others_can_write_to_is_refused(home: Path, depth: int) -> None:
    """Anywhere between our home and the agent's directory: both to start an agent and to find it again."""
    home.joinpath(*PARTS).mkdir(parents=True)
    for deep in range(len(PARTS) + 1):
        home.joinpath(*PARTS[:deep]).chmod(0o700)
    place = home.joinpath(*PARTS[:depth])
    place.chmod(0o777)
    connector = connector_to(home)
    for reach in (connector.open, connector.resume):
        with pytest.raises(LinkError) as refused:
            reach()
        assert f"{place} can be written to by others (mode 0777; chmod 700 is enough)" in str(refused.value)


def test_what_cannot_be_written_is_named(home: Path) -> None:
    """Also where the kernel names no file, as on a full disk."""
    access = CommandAccess(("/bin/sh", "-c", 'ulimit -f 1; exec "$@"', "sh"))
    with pytest.raises(LinkError, match=rf"^{home}/agents/\w+\.new: File too large"):
        connector_to(home, access=access).open()


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


def test_one_that_starts_while_another_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the thread that looks for the agent of an attempt which has ended: each is waited for, once."""
    connector = LocalConnector(tmp_path / "agent", "test")
    links = [connector.open()]
    first = connector.guard

    def start_another(*args: Any) -> Any:
        monkeypatch.undo()
        found = select.select(*args)
        links.append(connector.open())
        return found

    links[0].close()
    wait_gone(first.pid)
    monkeypatch.setattr("tflaunch.transport.local.select.select", start_another)
    with pytest.raises((AgentGoneError, LinkError)):  # the second has its lock, or not yet
        connector.resume()
    links[1].close()
    connector.end()
    assert [first.returncode, connector.guard.returncode] == [0, 0]


# ---- the agent's modules in the cache of the host


def serving(home: Path, run: str = "test") -> CommandConnector:
    """Return a connector for a host that holds what was unpacked."""
    return connector_to(home, run, UMASK._replace(holds=True))


def serve_once(connector: CommandConnector) -> None:
    link = connector.open()
    talk = Talk(link.socket)
    talk.hello()
    talk.say("leave")
    link.close()
    connector.end()


def unpacked(home: Path) -> Path:
    """Return the directory of the agent's modules, the only one in the cache."""
    (directory,) = (path for path in (home / "agents").iterdir() if path.name != "lock")
    return directory


def test_it_is_unpacked_once(tmp_path: Path) -> None:
    """It is private whatever the umask; Python's own cache holds the compiled modules."""
    serve_once(serving(tmp_path))
    before = (unpacked(tmp_path) / MODULE).stat()
    assert all(path.stat().st_mode & 0o077 == 0 for path in unpacked(tmp_path).rglob("*.py"))
    assert list(unpacked(tmp_path).glob("tflaunch_worker/agent/__pycache__/agent.*.pyc"))
    serve_once(serving(tmp_path))
    assert (unpacked(tmp_path) / MODULE).stat() == before


DAMAGES: dict[str, Callable[[Path], object]] = {
    "half a module": lambda place: (place / MODULE).write_bytes((place / MODULE).read_bytes()[:5000]),
    "another module": lambda place: (place / "tflaunch_worker/json.py").touch(),
    "no modules": lambda place: shutil.rmtree(place / "tflaunch_worker"),
    "what a killed process left": lambda place: shutil.move(place, f"{place}.new"),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_one_is_replaced(tmp_path: Path, damage: Callable[[Path], object]) -> None:
    """All modules are sent again, and nothing else remains."""
    serve_once(serving(tmp_path))
    place = unpacked(tmp_path)
    whole = {path: path.read_bytes() for path in place.rglob("*.py")}
    damage(place)
    serve_once(serving(tmp_path))
    assert unpacked(tmp_path) == place
    assert {path: path.read_bytes() for path in place.rglob("*.py")} == whole


def test_agents_that_start_together_share_it(tmp_path: Path) -> None:
    """Of several processes that find no modules, one unpacks them while the others wait."""
    with ThreadPoolExecutor(4) as pool:
        for _ in pool.map(lambda number: serve_once(serving(tmp_path, f"run-{number}")), range(4)):
            pass
    assert (unpacked(tmp_path) / MODULE).exists()


# ---- the home of all files: of users with a home, without one, and with that of another user

NAMELESS, OTHER = 54321, 1234


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the choice to the user's home."""
    for name in ("TFLAUNCH_HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)


def told_as(user: int, tell: Callable[[], str]) -> str:
    """Return what a function returns in a process of another user."""
    ours, theirs = os.pipe()
    if os.fork() == 0:
        try:
            os.setuid(user)
            os.write(theirs, tell().encode())
        finally:
            os._exit(0)
    os.close(theirs)
    with open(ours) as answer:
        text = answer.read()
    os.wait()
    return text


def test_the_default_is_in_the_users_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert boot.own_directory(is_given=True) == str(tmp_path / ".local/state/tflaunch")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert boot.own_directory(is_given=True) == str(tmp_path / "state/tflaunch")
    monkeypatch.setenv("TFLAUNCH_HOME", str(tmp_path / "given"))
    assert boot.own_directory(is_given=True) == str(tmp_path / "given")


@pytest.mark.needs("root")
@pytest.mark.parametrize("home", [None, "/"])
def test_a_user_whom_nobody_knows_has_a_directory_below_tmp(home: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in OpenShift, and with `docker run -u 1234`; `~` in paths is `/`, and no directory of that name."""
    monkeypatch.delenv("HOME") if home is None else monkeypatch.setenv("HOME", home)

    def tell() -> str:
        path = boot.own_directory(is_given=True)
        process_state.set_own_state()
        return f"{path} {os.path.expanduser('~/x')}"

    assert told_as(NAMELESS, tell) == f"/tmp/tflaunch-{NAMELESS} /x"


@pytest.mark.needs("root")
def test_root_leaves_nothing_in_the_home_of_another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With `sudo -E`: that user could not write there any more. What root has there already is used on."""
    monkeypatch.setenv("HOME", str(tmp_path))
    os.chown(tmp_path, OTHER, OTHER)
    assert not boot.own_directory(is_given=True).startswith(str(tmp_path))
    (tmp_path / ".local/state/tflaunch").mkdir(parents=True)
    assert boot.own_directory(is_given=True) == str(tmp_path / ".local/state/tflaunch")
