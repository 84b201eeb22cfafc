"""Read first frames: `hello` replaces the supervisor, `look` is read-only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict

from tflaunch_worker import wire
from tflaunch_worker.agent import orders

if TYPE_CHECKING:
    import socket

    from tflaunch_worker.agent.agent import Agent
    from tflaunch_worker.event_loop import Loop

_RECEIVE = 64 * 1024
_MOST_WAITING = 16
_FIRST_WORDS = ("hello", "look")


class Acceptor:
    """Holds connections until their first frame arrives."""

    def __init__(self, loop: Loop, agent: Agent) -> None:
        self._loop = loop
        self._agent = agent
        self._waiting: Dict[int, socket.socket] = {}

    def accept(self, connection: socket.socket) -> None:
        """Wait for a connection's first frame; when too many wait, the oldest is closed."""
        if len(self._waiting) >= _MOST_WAITING:
            self._forget(next(iter(self._waiting.values()))).close()
        connection.setblocking(False)
        self._waiting[connection.fileno()] = connection
        decoder, heard = wire.Decoder(), bytearray()

        def read() -> None:
            try:
                data = connection.recv(_RECEIVE)
                messages = decoder.feed(data)
            except BlockingIOError:
                return
            except (OSError, wire.WireError):
                data, messages = b"", []
            heard.extend(data)
            if messages or not data:
                self._forget(connection)
                self._open(connection, messages[0][0] if messages else {}, bytes(heard))

        self._loop.watch(connection.fileno(), read)

    def _forget(self, connection: socket.socket) -> socket.socket:
        del self._waiting[connection.fileno()]
        self._loop.forget(connection.fileno())
        return connection

    def _open(self, connection: socket.socket, message: Dict[str, Any], heard: bytes) -> None:
        """Handle a connection's first frame; ``heard`` is everything received so far."""
        kind = message.get("kind")
        try:
            if kind in orders.FIELDS:
                orders.check(message, orders.FIELDS[kind])
            if kind == "hello" and not self._agent.is_superseded(message):
                self._agent.admit(message, connection, heard)
                return
            if kind in _FIRST_WORDS:
                answer = self._agent.superseded() if kind == "hello" else self._agent.appearance()
                connection.send(wire.encode(answer))
        except (OSError, ValueError):
            pass  # the peer has disconnected or sent an invalid message
        connection.close()
