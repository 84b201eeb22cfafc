"""Exchange frames over a socket without blocking, for agents and all they talk to."""

from __future__ import annotations

import socket
from collections import deque
from typing import Any, Callable

from tflaunch_worker import wire
from tflaunch_worker.event_loop import Loop

Heard = Callable[["dict[str, Any]", bytes], None]
"""Takes a message and its body; raises ValueError if it breaks the protocol."""

_RECEIVE = 1024 * 1024
_MOST_UNSENT = 64 * 1024 * 1024


class Frames:
    """Sends and receives over one socket.

    Attributes:
        heard: takes each message.
        lost: takes the reason when the socket cannot be used any more; it is not closed yet.
        violated: called instead of ``lost`` when the peer breaks the protocol.
        refill: returns the next frame when all others are sent, None if there is none.
        heard_at: when data last arrived, by the loop's clock.
        unsent: how many bytes wait for the peer to read.
    """

    def __init__(
        self,
        connection: socket.socket,
        loop: Loop,
        heard: Heard,
        lost: Callable[[str], None],
        most_message: int = wire.MAX_MESSAGE,
        most_unsent: int = _MOST_UNSENT,
    ) -> None:
        """Start watching a socket; with more than ``most_unsent`` bytes, it is lost."""
        self.heard = heard
        self.lost = self.violated = lost
        self.refill: Callable[[], bytes | None] = lambda: None
        self.heard_at = loop.now()
        self.unsent = 0
        self._connection = connection
        self._loop = loop
        self._most_unsent = most_unsent
        self._decoder = wire.Decoder(most_message)
        self._out: deque[memoryview] = deque()
        self._is_open = True
        self._is_full = False
        connection.setblocking(False)
        loop.watch(connection.fileno(), self.look)

    def send(self, *pieces: bytes) -> None:
        """Send a frame, in pieces that others may share, or queue it until the peer reads."""
        if self._is_open:
            for piece in pieces:
                self._queue(piece)
            if not self._is_full:
                self.flush()
            if self.unsent > self._most_unsent:
                self._loop.call_at(self._loop.now(), self._give_up_unread)

    def close(self, patience: float = 0.0) -> None:
        """Close the socket; ``patience``: seconds to keep delivering what is unsent."""
        if self._is_open:
            self._is_open = False
            self._loop.forget(self._connection.fileno())
            if self._out and patience > 0:
                self._connection.settimeout(patience)
                try:
                    self._connection.sendall(b"".join(self._out))
                except OSError:
                    pass  # a peer that does not read is not waited for
            self._connection.close()

    def flush(self) -> None:
        """Send as much as the socket takes; the rest follows when the peer reads."""
        while self._is_open and (self._out or self._queue(self.refill())):
            try:
                sent = self._connection.send(self._out[0])
            except BlockingIOError:
                break
            except OSError:
                self._drop_unsent()  # the read side will notice that the peer is gone
                break
            self.unsent -= sent
            self._out[0] = self._out[0][sent:]
            if not self._out[0]:
                self._out.popleft()
        if self._is_open and self._is_full != bool(self._out):
            self._is_full = bool(self._out)
            self._loop.watch_writable(self._connection.fileno(), self._is_full)

    def _queue(self, piece: bytes | None) -> bool:
        if piece:
            self._out.append(memoryview(piece))
            self.unsent += len(piece)
        return bool(piece)

    def _give_up_unread(self) -> None:
        if self._is_open and self.unsent > self._most_unsent:
            self._drop_unsent()
            self.lost("it does not read what it is sent")

    def _drop_unsent(self) -> None:
        self._out.clear()
        self.unsent = 0

    def look(self) -> None:
        """Send and receive as much as possible without blocking."""
        self.flush()
        try:
            data = self._connection.recv(_RECEIVE)
        except BlockingIOError:
            return
        except OSError as error:
            self.lost(str(error))
            return
        if not data:
            self.lost("the connection was closed")
            return
        self.heard_at = self._loop.now()
        try:
            for message, body in self._decoder.feed(data):
                if self._is_open:
                    self.heard(message, body)
        except (wire.WireError, ValueError) as error:
            if self._is_open:
                self.violated(str(error))
