"""The connection between an editor and debugpy in a task, as the agent holds it.

The bytes are those of the debug adapter protocol, which is not looked into. In either direction, one part is on its way
at a time, so that neither a slow link nor an editor that does not read makes the agent keep more than that.

Standard library only, Python >= 3.8: this module runs on hosts.
"""

from __future__ import annotations

import array
import os
import socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable

    from tflaunch_worker.event_loop import Loop

_RECEIVE = 64 * 1024
_MOST_DESCRIPTORS = 16
_SPACE = socket.CMSG_SPACE(_MOST_DESCRIPTORS * array.array("i").itemsize)


class EditorStream:
    """The agent's end of a connection to debugpy."""

    def __init__(self, connection: socket.socket, loop: Loop, received: Callable[[bytes], None]) -> None:
        """Call ``received`` with each part that debugpy sends, the next one after `read_on`; b"" at the end."""
        self.is_used = False
        """Whether the editor has sent anything: it debugs the process."""
        self._connection = connection
        self._loop = loop
        self._received = received
        self._written: Callable[[], None] | None = None
        self._unwritten = b""
        self._is_paused = False
        connection.setblocking(False)
        loop.watch(connection.fileno(), self._serve)

    def write(self, data: bytes, written: Callable[[], None]) -> None:
        """Pass on what the editor has sent; call ``written`` when the next part can follow."""
        self.is_used = True
        self._unwritten += data
        self._written = written
        self._flush()

    def read_on(self) -> None:
        """Read the next part."""
        if self._is_paused and self._connection.fileno() >= 0:
            self._is_paused = False
            self._loop.forget(self._connection.fileno())
            self._loop.watch(self._connection.fileno(), self._serve)
            self._flush()

    def close(self) -> None:
        """Hang up: debugpy lets the process continue."""
        if self._connection.fileno() >= 0:
            self._loop.forget(self._connection.fileno())
            self._connection.close()

    def _serve(self) -> None:
        self._flush()
        try:
            data = self._connection.recv(_RECEIVE)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self._is_paused = True
        self._loop.forget(self._connection.fileno())
        self._received(data)

    def _flush(self) -> None:
        """Write what can be written; the rest follows when debugpy reads, or after `read_on`."""
        try:
            while self._unwritten:
                self._unwritten = self._unwritten[self._connection.send(self._unwritten) :]
        except BlockingIOError:
            pass
        except OSError:
            return  # it is noticed when reading
        if not self._is_paused:
            self._loop.watch_writable(self._connection.fileno(), wanted=bool(self._unwritten))
        if not self._unwritten and self._written is not None:
            written, self._written = self._written, None
            written()


def receive_with_descriptors(connection: socket.socket, size: int) -> tuple[bytes, list[socket.socket]]:
    """Receive data, and the sockets that were sent with it.

    Raises:
        OSError: nothing can be received.
    """
    data, ancillary, _, _ = connection.recvmsg(size, _SPACE, socket.MSG_CMSG_CLOEXEC)
    found = array.array("i")
    for level, kind, content in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            found.frombytes(content[: len(content) - len(content) % found.itemsize])
    return data, [received for descriptor in found if (received := _as_socket(descriptor)) is not None]


def _as_socket(descriptor: int) -> socket.socket | None:
    try:
        return socket.socket(fileno=descriptor)
    except OSError:
        os.close(descriptor)  # it is something else
        return None
