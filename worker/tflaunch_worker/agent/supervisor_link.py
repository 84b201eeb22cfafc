"""The agent's link to its supervisor: socket, unacknowledged events and output.

Losing the socket does not lose the supervisor: events are kept until it has seen them, output until it has
acknowledged it, and a new socket continues from there.
"""

from __future__ import annotations

import socket
from collections import deque
from typing import TYPE_CHECKING, Callable

from tflaunch_worker import wire
from tflaunch_worker.agent.task_output import Stream

if TYPE_CHECKING:
    from tflaunch_worker.event_loop import Loop

_RECEIVE = 256 * 1024
_LAST_WORD = 0.2  # seconds for sending a final message


class SupervisorLink:
    """Queues events and output for the supervisor; events go first."""

    def __init__(
        self,
        loop: Loop,
        received: Callable[[dict[str, object], bytes], None],
        lost: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._received = received
        self._lost = lost
        self._socket: socket.socket | None = None
        self._decoder = wire.Decoder()
        self._out = bytearray()
        self._unseen: deque[tuple[int, bytes]] = deque()
        self._seq = 0
        self._is_greeted = False
        self._streams: dict[str, dict[int, Stream]] = {}  # by task, then by attempt
        self._ready: dict[tuple[str, int], Stream] = {}

    # ---- the socket

    def connect(self, connection: socket.socket, heard: bytes = b"") -> None:
        """Use this socket; close an older one, because the newest supervisor is right.

        ``heard``: bytes already received from it.
        """
        self.disconnect()
        connection.setblocking(False)
        self._socket = connection
        self._decoder = wire.Decoder()
        self._loop.watch(connection.fileno(), self._serve)
        if heard:
            self._read(heard)

    def disconnect(self) -> None:
        """Close the socket; unacknowledged events and output are kept."""
        if self._socket is not None:
            self._loop.forget(self._socket.fileno())
            self._socket.close()
            self._socket = None
        self._is_greeted = False
        self._out.clear()

    @property
    def is_connected(self) -> bool:
        """Whether a supervisor is connected."""
        return self._socket is not None

    def _serve(self) -> None:
        connection = self._socket
        assert connection is not None
        try:
            data = connection.recv(_RECEIVE)
        except BlockingIOError:
            self.flush()
            return
        except OSError:
            data = b""
        if data:
            self._read(data)
        else:
            self._lose()

    def _read(self, data: bytes) -> None:
        connection = self._socket
        try:
            messages = self._decoder.feed(data)
        except wire.WireError:
            self._lose()
            return
        for message, body in messages:
            if self._socket is connection:  # otherwise it was refused, and its remaining messages are ignored
                self._received(message, body)
        if self._socket is connection:
            self.flush()

    def _lose(self) -> None:
        self.disconnect()
        self._lost()

    # ---- events

    def say(self, kind: str, **fields: object) -> None:
        """Queue an event; it is kept until the supervisor has seen it."""
        self._seq += 1
        frame = wire.encode({"kind": kind, "seq": self._seq, **fields})
        self._unseen.append((self._seq, frame))
        if self._is_greeted:
            self._out += frame
            self.flush()

    @property
    def has_unsent(self) -> bool:
        """Whether the supervisor has not read everything yet."""
        return bool(self._out)

    def answer(self, kind: str, body: bytes = b"", /, **fields: object) -> None:
        """Send a message, with what it carries; it is discarded if the socket is lost."""
        if self._is_greeted:
            self._out += wire.encode({"kind": kind, **fields}, body)
            self.flush()

    def greet(self, seen: int, **fields: object) -> None:
        """Answer a supervisor that has seen events up to ``seen``; send the later ones."""
        self.forget_seen(seen)
        streams = {(task, number): one for task, attempts in self._streams.items() for number, one in attempts.items()}
        self._out += wire.encode({"kind": "greeted", "streams": list(streams), **fields})
        for _, frame in self._unseen:
            self._out += frame
        for stream in streams.values():
            stream.rewind()
        self._ready.update(streams)
        self._is_greeted = True

    def refuse(self, reason: str) -> None:
        """Send the reason why this supervisor cannot be served, and close the connection."""
        self.dismiss({"kind": "refused", "reason": reason})

    def dismiss(self, message: dict[str, object]) -> None:
        """Send a final message, and close the connection."""
        if self._socket is not None and not self._out:  # otherwise the message would land in the middle of a frame
            self._socket.settimeout(_LAST_WORD)  # a stopped supervisor does not read
            try:
                self._socket.sendall(wire.encode(message))
            except OSError:
                pass
        self._lose()

    def forget_seen(self, seen: int) -> None:
        """Discard the events up to number ``seen``."""
        while self._unseen and self._unseen[0][0] <= seen:
            self._unseen.popleft()

    # ---- output

    def add(self, stream: Stream) -> None:
        """Send this stream until it is acknowledged completely."""
        self._streams.setdefault(stream.task, {})[stream.attempt] = stream

    def has_output(self, stream: Stream) -> None:
        """Schedule a stream that has new output for sending."""
        self._ready[(stream.task, stream.attempt)] = stream
        self.flush()

    def acknowledge(self, task: str, attempt: int, offset: int, is_complete: bool) -> None:
        """Note a stream's acknowledged ``offset``; ``is_complete``: its end, too."""
        attempts = self._streams.get(task, {})
        stream = attempts.get(attempt)
        if stream is None:
            return
        stream.acknowledge(offset)
        if is_complete:
            self._forget(stream)
            self._ready.update({(task, number): later for number, later in attempts.items()})
        else:
            self._ready[(task, attempt)] = stream

    def _forget(self, stream: Stream) -> None:
        del self._streams[stream.task][stream.attempt]
        if not self._streams[stream.task]:
            del self._streams[stream.task]
        self._ready.pop((stream.task, stream.attempt), None)
        stream.close()

    @property
    def has_heard_all(self) -> bool:
        """Whether the supervisor has acknowledged all output and nothing is queued."""
        return not self._out and not self._streams

    # ---- sending

    def flush(self) -> None:
        """Send as much as the socket accepts; the rest follows when it is writable again."""
        while self._socket is not None and self._is_greeted:
            if not self._out and not self._next_output():
                self._loop.watch_writable(self._socket.fileno(), False)
                return
            try:
                sent = self._socket.send(self._out)
            except BlockingIOError:
                self._loop.watch_writable(self._socket.fileno(), True)
                return
            except OSError:
                return  # the read side notices the error and cleans up
            del self._out[:sent]

    def _next_output(self) -> bool:
        """Queue one frame of output from the next stream; return whether there was one."""
        while self._ready:
            key, stream = next(iter(self._ready.items()))
            del self._ready[key]
            frame = None if self._has_earlier(stream) else stream.next_frame()
            if frame is not None:
                self._ready[key] = stream  # to the end of the queue, so that no task starves the others
                self._out += frame
                return True
        return False

    def _has_earlier(self, stream: Stream) -> bool:
        """Return whether an earlier attempt's output, sent first, is not acknowledged yet."""
        return any(attempt < stream.attempt for attempt in self._streams.get(stream.task, ()))
