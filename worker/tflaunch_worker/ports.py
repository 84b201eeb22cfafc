"""Ports of tasks: held from before the start until the end of the run.

A held port is a socket that is bound, with SO_REUSEPORT, but never listens. It takes no connections,
nobody else can bind the port, and the task itself can: TensorFlow's gRPC server binds with
SO_REUSEPORT when TF_GRPC_REUSE_PORT=true (measured with TensorFlow 2.21). So nothing can take a port
between the moment it is chosen and the moment the task listens on it.

Standard library only, Python >= 3.8: this module runs on hosts.
"""

from __future__ import annotations

import os
import socket

from tflaunch_worker import linux

LOWEST_CHOSEN = 10000
_TRIES = 200


class PortTaken(Exception):
    """A port is in use: ``port`` and, if it could be found out, ``owner``."""

    def __init__(self, port: int, owner: str | None) -> None:
        super().__init__(f"port {port} is in use by {owner or 'another process'}")
        self.port = port
        self.owner = owner


class Ports:
    """The ports that this agent holds, by task."""

    def __init__(self) -> None:
        self._held: dict[str, socket.socket] = {}

    def hold(self, task: str, port: int) -> int:
        """Hold a port for a task and return its number; 0 means: choose one.

        A port that the task holds already is kept when it is the wanted one, and given up otherwise.

        Raises:
            PortTaken: another process has the wanted port.
        """
        held = self._held.get(task)
        if held is not None:
            if port and held.getsockname()[1] == port:
                return port
            self.release(task)
        holder = _bind(port) if port else _bind_any()
        self._held[task] = holder
        return int(holder.getsockname()[1])

    def release(self, task: str) -> None:
        """Give up the port of a task; harmless when it has none."""
        holder = self._held.pop(task, None)
        if holder is not None:
            holder.close()


def _bind_any() -> socket.socket:
    """Bind a free port below those that outgoing connections use.

    The kernel never picks from there, and the choice is random, so that two launchers on one
    machine do not follow each other around.
    """
    width = max(linux.first_ephemeral_port() - LOWEST_CHOSEN, 1000)
    taken = 0
    for _ in range(_TRIES):
        taken = LOWEST_CHOSEN + int.from_bytes(os.urandom(4), "big") % width
        try:
            return _bind(taken)
        except PortTaken:
            continue
    raise PortTaken(taken, None)


def _bind(port: int) -> socket.socket:
    """Bind a port on every interface, as TensorFlow's server will.

    SO_REUSEPORT is set only after the bind: the bind itself is exclusive and so fails also when the
    other process has set SO_REUSEPORT, for instance a TensorFlow server that an earlier run left.
    """
    holder = _socket()
    try:
        holder.bind(("", port))
    except OSError as error:
        holder.close()
        raise PortTaken(port, linux.port_owner(port)) from error
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    return holder


def _socket() -> socket.socket:
    if socket.has_ipv6:
        try:
            holder = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
            holder.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            return holder
        except OSError:
            pass  # built with IPv6, but switched off in the kernel
    return socket.socket(socket.AF_INET, socket.SOCK_STREAM)
