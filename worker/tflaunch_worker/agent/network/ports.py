"""Hold the ports of tasks, from before their start until the end of the run.

A held port is a socket that is bound, with SO_REUSEPORT. It keeps other processes from binding the port, but not the
task itself: TensorFlow's gRPC server binds with SO_REUSEPORT when TF_GRPC_REUSE_PORT=true (measured with TensorFlow
2.21). So nothing can take a port between the moment it is chosen and the moment the task listens on it. The socket
listens only as part of the fence (`fence`).
"""

from __future__ import annotations

import os
import socket
from typing import Callable, Iterator, Tuple

from tflaunch_worker import procfs
from tflaunch_worker.agent.network import listening_sockets

LOWEST_CHOSEN = 10000
_TRIES = 200


class PortTakenError(Exception):
    """Error for a port in use, by its owner if that is known."""

    def __init__(self, port: int, owner: str | None = None) -> None:
        super().__init__(f"port {port} is in use by {owner or 'another process'}")


class Ports:
    """The ports that this agent holds, by task."""

    def __init__(self, released: Callable[[str], None]) -> None:
        """Hold nothing yet; ``released`` is called with a task before its port's release."""
        self._held: dict[str, Tuple[int, socket.socket]] = {}
        self._released = released

    def hold(self, task: str, port: int) -> int:
        """Hold a port for a task and return its number; 0 chooses one.

        A port that the task already holds is kept if it is the requested one, and released otherwise.

        Raises:
            PortTakenError: another process has the requested port.
        """
        held = self._held.get(task)
        if held is not None and port and held[0] == port:
            return port
        self.release(task)
        for number in [port] if port else _chosen():
            try:
                self._held[task] = number, _bind(number)
            except PortTakenError as error:
                taken = error
            else:
                return number
        raise taken

    def release(self, task: str) -> None:
        """Release the port of a task; has no effect if it has none."""
        held = self._held.pop(task, None)
        if held is not None:
            self._released(task)
            held[1].close()

    def holder(self, task: str) -> socket.socket | None:
        """Return the socket that holds a task's port, None if it has none."""
        return self._held[task][1] if task in self._held else None


def _chosen() -> Iterator[int]:
    """Return ports to try, below the range used for outgoing connections.

    The kernel never picks a port from there. The choice is random, so that two launchers on one machine rarely try the
    same ports.
    """
    width = max(procfs.first_ephemeral_port() - LOWEST_CHOSEN, 1000)
    return (LOWEST_CHOSEN + int.from_bytes(os.urandom(4), "big") % width for _ in range(_TRIES))


def _bind(port: int) -> socket.socket:
    """Bind a port on every interface, as TensorFlow's server will.

    SO_REUSEPORT is set only after the bind. The bind itself is exclusive, so it also fails if the other process has set
    SO_REUSEPORT, for instance a TensorFlow server left by an earlier run.

    SO_REUSEADDR is set for the bind only. Connections of a killed task are in TIME_WAIT for a minute, in which no
    process has the port; without the option they would keep its next agent from holding it. They do not keep
    TensorFlow, which sets both, from binding it.
    """
    holder = open_socket()
    try:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("", port))
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
    except OSError as error:
        holder.close()
        raise PortTakenError(port, listening_sockets.owner(port)) from error
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    return holder


def open_socket() -> socket.socket:
    """Return a TCP socket for connections over IPv4 and, if the host has it, IPv6."""
    if socket.has_ipv6:
        try:
            holder = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
            holder.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            return holder
        except OSError:
            pass  # built with IPv6, but disabled in the kernel
    return socket.socket(socket.AF_INET, socket.SOCK_STREAM)
