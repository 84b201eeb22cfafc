"""The agent's link to its supervisor: socket, unacknowledged events and output.

Losing the socket does not lose the supervisor: events are kept until it has seen them, output until it has
acknowledged it, and a new socket continues from there.
"""

from __future__ import annotations

import socket
from collections import deque
from typing import Callable

from tflaunch_worker import wire
from tflaunch_worker.agent.task_output import Stream
from tflaunch_worker.event_loop import Loop
from tflaunch_worker.frames import Frames, Heard

_LAST_WORD = 0.2  # seconds for sending a final message


class SupervisorLink:
    """Keeps events and output for the supervisor; events go first."""

    def __init__(self, loop: Loop, received: Heard, lost: Callable[[], None]) -> None:
        self._loop = loop
        self._received = received
        self._lost = lost
        self._frames: Frames | None = None
        self._unseen: deque[tuple[int, bytes]] = deque()
        self._seq = 0
        self._is_greeted = False
        self._streams: dict[str, dict[int, Stream]] = {}  # by task, then by attempt
        self._ready: dict[tuple[str, int], Stream] = {}

    # ---- the connection

    def connect(self, connection: socket.socket) -> None:
        """Use this socket."""
        self.use(Frames(connection, self._loop, self._received, self._lose))

    def use(self, frames: Frames) -> None:
        """Use this connection; close an older one, because the newest supervisor is right."""
        self.disconnect()
        frames.heard, frames.lost, frames.violated = self._received, self._lose, self._lose
        frames.refill = self._next_output
        self._frames = frames

    def disconnect(self) -> None:
        """Close the connection; unacknowledged events and output are kept."""
        if self._frames is not None:
            self._frames.close()
            self._frames = None
        self._is_greeted = False

    @property
    def is_connected(self) -> bool:
        """Whether a supervisor is connected."""
        return self._frames is not None

    def _lose(self, _: str = "") -> None:
        self.disconnect()
        self._lost()

    def _send(self, frame: bytes) -> None:
        if self._frames is not None:
            self._frames.send(frame)

    # ---- events

    def say(self, kind: str, **fields: object) -> None:
        """Queue an event; it is kept until the supervisor has seen it."""
        self._seq += 1
        frame = wire.encode({"kind": kind, "seq": self._seq, **fields})
        self._unseen.append((self._seq, frame))
        if self._is_greeted:
            self._send(frame)

    @property
    def has_unsent(self) -> bool:
        """Whether the supervisor has not read everything yet."""
        return self._frames is not None and self._frames.unsent > 0

    def answer(self, kind: str, body: bytes = b"", /, **fields: object) -> None:
        """Send a message, with what it carries; it is discarded if the connection is lost."""
        if self._is_greeted:
            self._send(wire.encode({"kind": kind, **fields}, body))

    def greet(self, seen: int, **fields: object) -> None:
        """Answer a supervisor that has seen events up to ``seen``; send the later ones."""
        self.forget_seen(seen)
        streams = {(task, number): one for task, attempts in self._streams.items() for number, one in attempts.items()}
        for stream in streams.values():
            stream.rewind()
        self._ready.update(streams)
        self._is_greeted = True
        greeting = wire.encode({"kind": "greeted", "streams": list(streams), **fields})
        self._send(b"".join([greeting, *(frame for _, frame in self._unseen)]))  # before any output

    def refuse(self, reason: str) -> None:
        """Send the reason why this supervisor cannot be served, and close the connection."""
        self.dismiss({"kind": "refused", "reason": reason})

    def dismiss(self, message: dict[str, object]) -> None:
        """Send a final message, and close the connection."""
        if self._frames is not None and not self.has_unsent:  # it does not read, or may read output that others log
            self._frames.send(wire.encode(message))
            self._frames.close(_LAST_WORD)
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
        self._flush()

    def acknowledge(self, task: str, attempt: int, offset: int, is_complete: bool) -> None:
        """Note a stream's acknowledged ``offset``; ``is_complete``: its end, too."""
        attempts = self._streams.get(task, {})
        stream = attempts.get(attempt)
        if stream is None:
            return
        stream.acknowledge(offset)
        if is_complete:
            self.drop(stream)
            self._ready.update({(task, number): later for number, later in attempts.items()})
        else:
            self._ready[(task, attempt)] = stream
        self._flush()

    def drop(self, stream: Stream) -> None:
        """Send no more of a stream, and discard it."""
        del self._streams[stream.task][stream.attempt]
        if not self._streams[stream.task]:
            del self._streams[stream.task]
        self._ready.pop((stream.task, stream.attempt), None)
        stream.close()

    @property
    def has_heard_all(self) -> bool:
        """Whether the supervisor has acknowledged all output and nothing is queued."""
        return not self.has_unsent and not self._streams

    def _flush(self) -> None:
        if self._frames is not None:
            self._frames.flush()

    def _next_output(self) -> bytes | None:
        """Return one frame of output from the next stream, None if there is none."""
        while self._ready and self._is_greeted:
            key, stream = next(iter(self._ready.items()))
            del self._ready[key]
            unacknowledged = self._streams.get(stream.task, ())  # an earlier attempt's output is sent first
            frame = None if any(attempt < stream.attempt for attempt in unacknowledged) else stream.next_frame()
            if frame is not None:
                self._ready[key] = stream  # to the end of the queue, so that no task starves the others
                return frame
        return None
