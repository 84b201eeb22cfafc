"""Query agents, read-only, for the state of tasks whose supervisor is gone."""

import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from tflaunch.core import events
from tflaunch.records import read_record
from tflaunch.transport.base import AgentConnector, AgentGoneError, Link, LinkError
from tflaunch_worker import wire
from tflaunch_worker.readable import printable

_PATIENCE = 5.0  # seconds for an agent's reply
_AT_ONCE = 32
_RECEIVE = 64 * 1024
_LONGEST_ANSWER = 1024 * 1024


class _LiveTask(NamedTuple):
    attempt: events.Attempt
    pid: events.Count


class _LiveTasks(NamedTuple):
    """The reply to ``look``: live tasks, and the seconds left of the lease."""

    tasks: dict[str, _LiveTask]
    lease_left: events.Seconds


class AgentSnapshot(NamedTuple):
    """The state of one host.

    ``tasks``: live tasks mapped to attempt and PID; None if the host could not be queried, for ``reason``.
    ``lease_left``: how many seconds the tasks may go on without a supervisor.
    """

    host: str
    tasks: Mapping[str, tuple[int, int]] | None
    lease_left: float = 0.0
    reason: str = ""


def look_at(connectors: Mapping[str, AgentConnector]) -> dict[str, AgentSnapshot]:
    """Return the state of each host, queried in parallel."""
    if not connectors:
        return {}
    with ThreadPoolExecutor(min(len(connectors), _AT_ONCE), "look") as pool:  # no limit: its threads have theirs
        return dict(zip(connectors, pool.map(_look, connectors, connectors.values()), strict=True))


def _look(host: str, connector: AgentConnector) -> AgentSnapshot:
    try:
        link = connector.resume()
    except AgentGoneError:
        return AgentSnapshot(host, {})
    except LinkError as error:
        return AgentSnapshot(host, None, reason=printable(str(error)))
    try:
        link.socket.settimeout(_PATIENCE)
        link.socket.sendall(wire.encode({"kind": "look"}))
        answer = _answer(link)
        if answer["kind"] != "seen":
            raise ValueError(f"it answered with {answer['kind'][:40]!r}")  # noqa: TRY301 (below is what becomes of it)
        seen = read_record(_LiveTasks, answer)
    except (OSError, EOFError, wire.WireError, ValueError) as error:
        reason = f"its agent did not answer: {printable(str(error)) or type(error).__name__}"
        return AgentSnapshot(host, None, reason=reason)
    finally:
        link.close()
    return AgentSnapshot(host, seen.tasks, seen.lease_left)


def _answer(link: Link) -> dict[str, Any]:
    """Return the first message over a link, which must arrive within `_PATIENCE`."""
    decoder = wire.Decoder(_LONGEST_ANSWER)
    end = time.monotonic() + _PATIENCE
    while True:
        link.socket.settimeout(max(end - time.monotonic(), 0.01))
        data = link.socket.recv(_RECEIVE)
        if not data:
            raise EOFError("it hung up")
        for message, _ in decoder.feed(data):
            return message
        if time.monotonic() >= end:
            raise TimeoutError("timed out")
