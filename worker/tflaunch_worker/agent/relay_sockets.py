"""Make sockets in a host's private network for its relay, which is not in that network.

Standard library only, Python >= 3.8: this module runs on hosts.
"""

from __future__ import annotations

import errno
import os
import signal
import socket
import threading

from tflaunch_worker import linux
from tflaunch_worker.forkserver.messages import receive_message, send_message

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn, Sequence

BACKLOG = 1024
CONNECT_SECONDS = 10.0
_BIND_ADDRESS_NO_PORT = 24  # from linux/in.h: connect() chooses the port, not bind()


def make_sockets(channel: socket.socket, namespaces: Sequence[int]) -> NoReturn:
    """Make sockets in these namespaces for the relay: each is bound to an address, and listens if it is to."""
    for namespace in namespaces:
        linux.enter_namespace(namespace)
    linux.die_with_parent(signal.SIGKILL)  # again: entering a user namespace has reset it
    while True:
        message, _ = receive_message(channel)
        made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        with made:
            try:
                if message["listens"]:
                    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)  # a task may have the same port
                else:
                    made.setsockopt(socket.IPPROTO_IP, _BIND_ADDRESS_NO_PORT, 1)
                made.bind((message["address"], message["port"]))
                if message["listens"]:
                    made.listen(BACKLOG)
            except OSError as error:
                send_message(channel, {"error": error.errno})
                continue
            send_message(channel, {}, [made.fileno()])


class SocketMaker:
    """Client of `make_sockets`: returns sockets in the private network."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._lock = threading.Lock()

    def listen(self, address: str, port: int) -> socket.socket:
        """Return a socket that listens there.

        Raises:
            OSError: the address is taken.
        """
        return self._make(listens=True, address=address, port=port)

    def connect(self, source: str, address: str, port: int) -> socket.socket:
        """Return a connection there that comes from the address ``source``.

        Raises:
            OSError: the connection was refused, or timed out.
        """
        made = self._make(listens=False, address=source, port=0)
        try:
            made.settimeout(CONNECT_SECONDS)
            made.connect((address, port))
        except OSError:
            made.close()
            raise
        return made

    def _make(self, **order: object) -> socket.socket:
        with self._lock:
            try:
                send_message(self._channel, order)
                message, descriptors = receive_message(self._channel)
            except (EOFError, OSError):
                os._exit(1)  # the other process has died, and the relay is of no use without it; the agent notices
        if not descriptors:  # without an error: this process has too many, and the kernel has dropped it
            error = message.get("error", errno.EMFILE)
            raise OSError(error, os.strerror(error))
        return socket.socket(fileno=descriptors[0])
