"""Looking at agents without being their supervisor: when a run has none, its tasks' true state is theirs to tell."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from tflaunch.hosts.link import AgentGone, LinkError, Way
from tflaunch_worker import wire

_PATIENCE = 5.0  # seconds for an agent's answer
_AT_ONCE = 32
_RECEIVE = 64 * 1024


class Sighting(NamedTuple):
    """What was seen on a host.

    ``tasks``: those that live, to their attempt and process number; None when the host could not be looked at, for
    a ``reason``. ``lease_left``: how many seconds they may live on without a supervisor.
    """

    host: str
    tasks: Mapping[str, tuple[int, int]] | None
    lease_left: float = 0.0
    reason: str = ""


def look_at(ways: Mapping[str, Way]) -> dict[str, Sighting]:
    """Return what is seen on each host. Hosts are looked at side by side."""
    if not ways:
        return {}
    with ThreadPoolExecutor(min(len(ways), _AT_ONCE), "look") as pool:
        return dict(zip(ways, pool.map(_look, ways, ways.values()), strict=True))


def _look(host: str, way: Way) -> Sighting:
    try:
        link = way.resume()
    except AgentGone:
        return Sighting(host, {})
    except LinkError as error:
        return Sighting(host, None, reason=str(error))
    try:
        link.socket.settimeout(_PATIENCE)
        link.socket.sendall(wire.encode({"kind": "look"}))
        return _sighting(host, _answer(link.socket.recv))
    except (OSError, EOFError, wire.WireError, KeyError, TypeError, ValueError) as error:
        return Sighting(host, None, reason=f"its agent did not answer: {error or type(error).__name__}")
    finally:
        link.close()


def _answer(receive: Any) -> dict[str, Any]:
    decoder = wire.Decoder()
    while True:
        data = receive(_RECEIVE)
        if not data:
            raise EOFError("it hung up")
        for message, _ in decoder.feed(data):
            return message


def _sighting(host: str, message: dict[str, Any]) -> Sighting:
    tasks = {str(task): (int(known["attempt"]), int(known["pid"])) for task, known in message["tasks"].items()}
    return Sighting(host, tasks, float(message["lease_left"]))
