"""Send and receive frames over a link, and send commands again over the next one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from tflaunch.mailbox import Mailbox
from tflaunch.transport.base import Link
from tflaunch_worker import wire

_RECEIVE = 1024 * 1024
_MOST_MESSAGE = 4 * 1024 * 1024  # the longest message lists 50,000 files that a host lacks
_MOST_UNSENT = 65_536  # pieces of frames queued for a host that is not reading

Frame = tuple[bytes, ...]
"""The pieces of a frame in order. Similar frames may share some of them."""


class Frames:
    """Sends and receives without blocking. ``heard_at``: when data last arrived."""

    def __init__(
        self,
        link: Link,
        mailbox: Mailbox,
        heard: Callable[[dict[str, Any], bytes], None],
        lost: Callable[[str], None],
        violated: Callable[[str], None],
    ) -> None:
        """Start watching a link.

        Args:
            link: the link.
            mailbox: the event loop that watches it, and its clock.
            heard: takes each message and its body; raises ValueError for one that breaks the protocol.
            lost: takes the reason when the link cannot be used any more; the link is not closed yet.
            violated: called instead of ``lost`` when the peer breaks the protocol.
        """
        self._link = link
        self._mailbox = mailbox
        self._heard = heard
        self._lost = lost
        self._violated = violated
        self._decoder = wire.Decoder(_MOST_MESSAGE)
        self._out: deque[memoryview] = deque()
        self._is_open = True
        self._is_full = False
        self.heard_at = mailbox.now()
        link.socket.setblocking(False)
        mailbox.watch(link.socket.fileno(), self.look)

    def send(self, frame: Frame) -> None:
        """Send a frame now, or queue it until the link is writable."""
        if self._is_open:
            self._out.extend(map(memoryview, frame))
            if not self._is_full:
                self._flush()
            if len(self._out) > _MOST_UNSENT:
                self._mailbox.call(self._give_up_unread)

    def close(self) -> None:
        """Close the link."""
        if self._is_open:
            self._is_open = False
            self._mailbox.forget(self._link.socket.fileno())
            self._link.close()

    def _give_up_unread(self) -> None:
        if self._is_open and len(self._out) > _MOST_UNSENT:
            self._out.clear()
            self._lost("it does not read what it is sent")

    def _flush(self) -> None:
        link = self._link.socket
        while self._out:
            try:
                sent = link.send(self._out[0])
            except BlockingIOError:
                break
            except OSError:
                self._out.clear()  # the read side will notice that the link is lost
                break
            self._out[0] = self._out[0][sent:]
            if not self._out[0]:
                self._out.popleft()
        if self._is_full != bool(self._out):
            self._is_full = bool(self._out)
            self._mailbox.watch_writable(link.fileno(), self._is_full)

    def look(self) -> None:
        """Send and receive as much as possible without blocking."""
        self._flush()
        try:
            data = self._link.socket.recv(_RECEIVE)
        except BlockingIOError:
            return
        except OSError as error:
            self._lost(str(error))
            return
        if not data:
            self._lost("the connection was closed")
            return
        self.heard_at = self._mailbox.now()
        try:
            for message, body in self._decoder.feed(data):
                if self._is_open:
                    self._heard(message, body)
        except (wire.WireError, ValueError) as error:
            if self._is_open:
                self._violated(str(error))


class CommandOutbox:
    """The commands sent to an agent since its start.

    ``last_bodies`` maps a kind to the last body of that kind. ``are_kept``: keep them, as the link may be restored.
    Before the first link, they are kept in any case.
    """

    def __init__(self, are_kept: bool) -> None:
        self._are_kept = are_kept
        self._has_link = False
        self._waiting: deque[tuple[int, Frame]] = deque()
        self.starts: dict[tuple[str, int], int] = {}
        """The task and number of each attempt that the agent was told to start, and that command's number."""
        self._last = 0
        self.last_bodies: dict[str, bytes] = {}

    def add(self, kind: str, body: bytes = b"", /, **fields: object) -> Frame:
        """Number the next command and return its frame; agents can share a body."""
        self._last += 1
        head = wire.encode_head({"kind": kind, "order": self._last, **fields}, len(body))
        frame = (head, body) if body else (head,)
        if body:
            self.last_bodies[kind] = body
        if kind == "start_task":
            self.starts[(str(fields["task"]), int(str(fields["attempt"])))] = self._last
        if self._are_kept or not self._has_link:
            self._waiting.append((self._last, frame))
        return frame

    @property
    def last(self) -> int:
        """The number of the last command, 0 before the first."""
        return self._last

    def forget(self, obeyed: int | None = None) -> None:
        """Discard the commands up to number ``obeyed``, or all of them without a number."""
        while self._waiting and (obeyed is None or self._waiting[0][0] <= obeyed):
            self._waiting.popleft()

    def begin_link(self) -> list[Frame]:
        """Return the frames that the agent may lack, to be sent over a new link."""
        self._has_link = True
        frames = [frame for _, frame in self._waiting]
        if not self._are_kept:
            self._waiting.clear()
        return frames

    def silent_attempts(self, obeyed: int, streams: Iterable[Iterable[object]]) -> list[tuple[str, int]]:
        """Return the attempts that the agent has started and holds no more output of.

        An earlier supervisor received their output to the end and acknowledged it.

        Args:
            obeyed: the number of the last command that the agent has executed.
            streams: task and attempt of every output that the agent still holds.
        """
        kept = {tuple(stream) for stream in streams}
        return [about for about, number in self.starts.items() if number <= obeyed and about not in kept]
