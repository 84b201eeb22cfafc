"""Listen on a port of the loopback address, or say which process holds it."""

import errno
import socket
from collections.abc import Sequence

from tflaunch.errors import EXIT_USAGE, TflaunchError
from tflaunch_worker.agent.network import listening_sockets

LOOPBACK = "127.0.0.1"


def listen_on_first(ports: Sequence[int], backlog: int = 1) -> socket.socket:
    """Listen on the first of these ports of LOOPBACK that is free; 0 is any.

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
    """Return why a port cannot be bound: ``is held by pid 4711 (python a.py)``."""
    holder = listening_sockets.owner(port) if error.errno == errno.EADDRINUSE else None
    return f"is held by {holder}" if holder else f"cannot be used: {error.strerror}"
