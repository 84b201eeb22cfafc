"""Listen on a port of the loopback address, or say which process holds it."""

from __future__ import annotations

import errno
import socket
from collections.abc import Sequence

import psutil

from tflaunch.errors import EXIT_USAGE, TflaunchError
from tflaunch_worker.printable import printable

LOOPBACK = "127.0.0.1"
_COVERING = (LOOPBACK, "0.0.0.0", "::", f"::ffff:{LOOPBACK}")  # noqa: S104 - their listeners have LOOPBACK's port


def listen_on_first(ports: Sequence[int], backlog: int = 1) -> socket.socket:
    """Listen on the first of these ports of LOOPBACK that is free; 0 stands for any.

    Raises:
        TflaunchError: none of them is free.
    """
    for port in ports:
        # With this protocol asyncio sends small answers at once (TCP_NODELAY), else 40 ms later.
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((LOOPBACK, port))
            listener.listen(backlog)
            return listener
        except OSError as error:
            listener.close()
            why = why_unusable(port, error)
    raise TflaunchError(f"port {port} {why}; choose another one, or leave --port out", EXIT_USAGE)


def why_unusable(port: int, error: OSError) -> str:
    """Return why a port cannot be bound: ``is held by python (pid 4711)``."""
    holder = _holder(port) if error.errno == errno.EADDRINUSE else None
    return f"is held by {holder}" if holder else f"cannot be used: {error.strerror}"


def _holder(port: int) -> str | None:
    """Return name and pid of a port's listener; None if this user may not see it."""
    try:
        for connection in psutil.net_connections("tcp"):
            covers = connection.laddr and connection.laddr.port == port and connection.laddr.ip in _COVERING
            if connection.status == psutil.CONN_LISTEN and covers and connection.pid is not None:
                return f"{printable(psutil.Process(connection.pid).name())} (pid {connection.pid})"
    except psutil.Error:
        pass  # it has just exited, or is another user's
    return None
