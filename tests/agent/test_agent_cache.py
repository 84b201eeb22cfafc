"""The agent's modules in the cache of a host that tflaunch is not installed on."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from support.agent_client import Talk
from tflaunch.plan.model import HostPlan
from tflaunch.transport.command import CommandAccess, CommandConnector, CommandConnectors

pytestmark = pytest.mark.agent

MODULE = "tflaunch_worker/agent/agent.py"


def connector(home: Path, run: str = "test") -> CommandConnector:
    """Return a connector for a host with this home whose shell has no umask."""
    host = HostPlan("here", is_local=False, home=str(home))
    return CommandConnector(
        CommandConnectors(run, 240.0), host, CommandAccess(("/bin/sh", "-c", 'umask 000; exec "$@"', "sh"), holds=True)
    )


def serve_once(connector: CommandConnector) -> None:
    """Start an agent, wait for its answer, and end it."""
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
    serve_once(connector(tmp_path))
    before = (unpacked(tmp_path) / MODULE).stat()
    assert all(path.stat().st_mode & 0o077 == 0 for path in unpacked(tmp_path).rglob("*.py"))
    assert list(unpacked(tmp_path).glob("tflaunch_worker/agent/__pycache__/agent.*.pyc"))
    serve_once(connector(tmp_path))
    assert (unpacked(tmp_path) / MODULE).stat() == before


DAMAGES: dict[str, Callable[[Path], object]] = {
    "half a module": lambda place: (place / MODULE).write_bytes((place / MODULE).read_bytes()[:5000]),
    "bytes that are not UTF-8": lambda place: (place / MODULE).write_bytes(b"\xff\xfe"),
    "a missing module": lambda place: (place / MODULE).unlink(),
    "another module": lambda place: (place / "tflaunch_worker/json.py").touch(),
    "no modules": lambda place: shutil.rmtree(place / "tflaunch_worker"),
    "what a killed process left": lambda place: shutil.move(place, f"{place}.new"),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_one_is_replaced(tmp_path: Path, damage: Callable[[Path], object]) -> None:
    """All modules are sent again, and nothing else remains."""
    serve_once(connector(tmp_path))
    place = unpacked(tmp_path)
    whole = {path: path.read_bytes() for path in place.rglob("*.py")}
    damage(place)
    serve_once(connector(tmp_path))
    assert unpacked(tmp_path) == place
    assert {path: path.read_bytes() for path in place.rglob("*.py")} == whole


def test_agents_that_start_together_share_it(tmp_path: Path) -> None:
    """Of several processes that find no modules, one unpacks them while the others wait."""
    with ThreadPoolExecutor(4) as pool:
        for _ in pool.map(lambda number: serve_once(connector(tmp_path, f"run-{number}")), range(4)):
            pass
    assert (unpacked(tmp_path) / MODULE).exists()
