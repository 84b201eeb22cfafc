"""Hold tasks' ports, from before their start to the run's end; see when they open.

A held port is a socket that is bound, with SO_REUSEPORT. It keeps other processes from binding the port, but not the
task itself: TensorFlow's gRPC server binds with SO_REUSEPORT when TF_GRPC_REUSE_PORT=true (measured with TensorFlow
2.21). So nothing can take a port between the moment it is chosen and the moment the task listens on it. The socket
listens only as part of the fence (`fence`).

The kernel sends no notification when a port is opened, so this polls; nothing else in tflaunch does. It polls every
quarter of a second at first, then less and less often, and not at all once all ports are open. One poll is one request
to the kernel, for all tasks together.
"""

from __future__ import annotations

import os
import socket
from typing import Callable, Collection, Iterator, Tuple

from tflaunch_worker import procfs
from tflaunch_worker.agent.network import listening_sockets
from tflaunch_worker.event_loop import Loop

LOWEST_CHOSEN = 10000
_TRIES = 200
FIRST_LOOK = 0.25
_GROWTH = 8  # a poll at t is followed by one at t + t/8, so opening times are accurate to about 12 %
_GIVE_UP = 3600.0  # seconds; TensorFlow itself waits no longer for a missing peer


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


class PortWatch:
    """Watch that calls ``opened(task, port)`` once for each task that listens."""

    def __init__(
        self, loop: Loop, opened: Callable[[str, int], None], ours: Callable[[], Collection[int]] = frozenset
    ) -> None:
        """Watch nothing yet; ``ours``: inodes of the agent's own sockets on tasks' ports."""
        self._loop = loop
        self._ours = ours
        self._opened = opened
        self._waiting: dict[str, tuple[int, Callable[[], int] | None]] = {}
        self._since = 0.0
        self._is_scheduled = False
        self._looked_at = 0.0

    def add(self, task: str, port: int, process: Callable[[], int] | None = None) -> None:
        """Watch the port of a starting task, 0 if its program will choose one.

        ``process`` returns its pid; needed then, and if it is in a network of its own.
        """
        self._waiting[task] = port, process
        self._since = self._loop.now()
        self._schedule()

    def look_soon(self) -> None:
        """Poll now unless just done: tasks write output once the cluster has formed."""
        if self._waiting and self._loop.now() - self._looked_at >= FIRST_LOOK:
            self._look_now()

    def remove(self, task: str) -> None:
        """Stop watching a task; has no effect if its port is already open."""
        self._waiting.pop(task, None)

    def _schedule(self) -> None:
        elapsed = self._loop.now() - self._since
        if self._waiting and not self._is_scheduled and elapsed < _GIVE_UP:
            self._is_scheduled = True
            delay = max(FIRST_LOOK, elapsed / _GROWTH)
            self._loop.call_at(self._loop.now() + delay, self._look)

    def _look(self) -> None:
        self._is_scheduled = False
        self._look_now()
        self._schedule()

    def _look_now(self) -> None:
        self._looked_at = self._loop.now()
        open_ports = listening_sockets.ports(self._ours()) if self._waiting else set()
        for task, (wanted, process) in list(self._waiting.items()):
            if process is None:
                listening = open_ports
            elif wanted:
                listening = listening_sockets.ports_beside(process())
            else:
                listening = listening_sockets.ports_of(process())
            port = wanted or min(listening, default=0)
            if port in listening:
                del self._waiting[task]
                self._opened(task, port)
