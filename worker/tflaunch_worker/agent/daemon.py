"""The agent's process: the socket for later supervisors, and signal handling."""

from __future__ import annotations

import os
import signal
import socket
from typing import Any

from tflaunch_worker import SOCKET_NAME, linux, procfs, wire
from tflaunch_worker.agent import orders
from tflaunch_worker.agent.agent import Agent
from tflaunch_worker.agent.host import Host
from tflaunch_worker.event_loop import Loop
from tflaunch_worker.frames import Frames
from tflaunch_worker.signals import ENDING, OF_TERMINALS
from tflaunch_worker.socket_messages import receive_message

_MOST_WAITING = 16
_FIRST_WORDS = ("hello", "look")


def serve(directory: str, connection: socket.socket, umask: int, guard: socket.socket) -> list[int]:
    """Run the host's agent until run or lease ends; return the pids that outlive it.

    ``connection`` and ``guard`` are sockets to its first client and to its guard; tasks get the ``umask``.
    """
    loop = Loop()
    agent = Agent(loop, Host(directory, loop, umask))
    _listen(directory, loop, agent)
    _watch_signals(loop, agent)
    _hear_guard(loop, agent, guard)
    agent.connect(connection)
    loop.run()
    spared = agent.outlive_run()
    agent.disconnect()  # last: it ends the run for the launcher, and the next run may need what stays at once
    return spared


def _listen(directory: str, loop: Loop, agent: Agent) -> None:
    listener = linux.bind_to(directory, SOCKET_NAME)
    listener.listen(1)
    listener.setblocking(False)
    acceptor = Acceptor(loop, agent)

    def accept() -> None:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        if linux.is_same_user(connection):
            acceptor.accept(connection)
        else:
            connection.close()

    loop.watch(listener.fileno(), accept)


def _watch_signals(loop: Loop, agent: Agent) -> None:
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for number in (*ENDING, signal.SIGCHLD):  # CHLD for kernels without pidfds (before 5.3)
        signal.signal(number, lambda *_: None)  # it is read from the pipe, in the loop
    for number in OF_TERMINALS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])  # the guard has blocked them before it forked this process

    guard = os.getppid()

    def read() -> None:
        if not ENDING.isdisjoint(os.read(reader, 4096)):
            if os.getppid() == guard:
                agent.drain()
            else:  # the kernel sends TERM when the guard dies
                agent.give_up("its guard was killed there")
        agent.check_exits()

    loop.watch(reader, read)


def _hear_guard(loop: Loop, agent: Agent, connection: socket.socket) -> None:
    guard = os.getppid()

    def hear() -> None:
        try:
            number = receive_message(connection)[0]["signal"]
        except (OSError, EOFError, ValueError, LookupError):
            loop.forget(connection.fileno())  # the guard is dead: the kernel has sent TERM
        else:
            agent.drain()
            agent.note_told(number, lambda pid: procfs.is_below(pid, guard))

    loop.watch(connection.fileno(), hear)


class Acceptor:
    """Holds new connections: `hello` replaces the supervisor, `look` is read-only."""

    def __init__(self, loop: Loop, agent: Agent) -> None:
        self._loop = loop
        self._agent = agent
        self._waiting: list[Frames] = []

    def accept(self, connection: socket.socket) -> None:
        """Wait for a connection's first frame; when too many wait, the oldest is closed."""
        if len(self._waiting) >= _MOST_WAITING:
            self._waiting.pop(0).close()
        frames = Frames(connection, self._loop, lambda message, _: self._open(frames, message), lambda _: end())

        def end() -> None:
            self._waiting.remove(frames)
            frames.close()

        self._waiting.append(frames)

    def _open(self, frames: Frames, message: dict[str, Any]) -> None:
        """Handle a connection's first message."""
        self._waiting.remove(frames)
        kind = message["kind"]
        try:
            if kind in orders.FIELDS:
                orders.check(message, orders.FIELDS[kind])
            if kind == "hello" and not self._agent.is_superseded(message):
                self._agent.admit(message, frames)
                return
            if kind in _FIRST_WORDS:
                answer = self._agent.superseded() if kind == "hello" else self._agent.appearance()
                frames.send(wire.encode(answer))
        except ValueError:
            pass  # the message is invalid
        frames.close()
