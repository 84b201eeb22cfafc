"""Simulate hosts: one process that answers for all of their agents, over real sockets.

It parses messages and sends frames as an agent does, but starts no processes, so the remaining cost of a run is
the supervisor's alone.
"""

import json
import re
import selectors
import socket
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tflaunch_worker import wire

KILL, FINISH = b"k", b"f"
"""Commands of a run's conductor: fail one task; end all tasks successfully."""

_HEADER = struct.Struct("!II")
_RECEIVE = 1024 * 1024
# An order to start a task contains all addresses. A host would parse it, but here all hosts share one processor.
_START = re.compile(rb'\{"kind":"start_task","order":(\d+),"task":"([^"]+)","attempt":(\d+)')


class _Agent:
    """The agent of one host."""

    def __init__(self, connection: socket.socket, hosts: "SimulatedHosts") -> None:
        connection.setblocking(False)
        self.connection = connection
        self._hosts = hosts
        self._in = bytearray()
        self._out = bytearray()
        self._seq = 0
        self._obeyed = 0
        self._living: dict[str, int] = {}

    def serve(self) -> None:
        """Read what has arrived, and answer."""
        try:
            data = self.connection.recv(_RECEIVE)
        except BlockingIOError:
            self.flush()
            return
        except OSError:
            data = b""
        if not data:
            self._hosts.left(self)
            return
        self._in += data
        for message in self._messages():
            self._obey(message)
        self.flush()

    def _messages(self) -> Iterator[dict[str, Any]]:
        start = 0
        while len(self._in) - start >= _HEADER.size:
            size, body = _HEADER.unpack_from(self._in, start)
            end = start + _HEADER.size + size + body
            if len(self._in) < end:
                break
            head = bytes(self._in[start + _HEADER.size : end - body])
            start = end
            if found := _START.match(head):
                order, task, attempt = found.groups()
                yield {"kind": "start_task", "order": int(order), "task": task.decode(), "attempt": int(attempt)}
            else:
                yield json.loads(head)
        del self._in[:start]

    def _obey(self, message: dict[str, Any]) -> None:
        self._obeyed = message.get("order", self._obeyed)
        match message["kind"]:
            case "hello":
                self._answer("greeted", message, streams=[], addresses=["127.0.0.1"], is_leaving=False)
            case "keep_alive":
                self._answer("alive", message)
            case "look_up_names":
                self._tell("names_resolved", found=dict.fromkeys(message["names"], "10.0.0.9"))
            case "hold_ports":
                self._tell("ports_held", ports={task: 20000 + at for at, task in enumerate(message["ports"])})
            case "probe_peers":
                self._tell("peers_probed", failed={})
            case "start_task":
                self._start(message["task"], message["attempt"])
            case "stop_task":
                self._hosts.told_to_stop = time.monotonic()
                self.end(message["task"], signal=15, was_told=True)
            case "leave":
                self._hosts.left(self)

    def _answer(self, kind: str, asked: dict[str, Any], **fields: object) -> None:
        about = {"obeyed": self._obeyed, "sent": asked["sent"], "time": time.monotonic()}
        self._out += wire.encode({"kind": kind, **about, **fields})

    def _tell(self, kind: str, **fields: object) -> None:
        self._seq += 1
        self._out += wire.encode({"kind": kind, "seq": self._seq, **fields})

    def _start(self, task: str, attempt: int) -> None:
        self._living[task] = attempt
        about = {"task": task, "attempt": attempt}
        self._tell("task_started", **about, pid=1, at=time.monotonic(), preload="")
        self._tell("port_opened", **about)

    def end(self, task: str, code: int | None = None, signal: int | None = None, was_told: bool = False) -> None:
        """Let a task exit and its processes disappear."""
        attempt = self._living.pop(task, None)
        if attempt is None:
            return
        about = {"task": task, "attempt": attempt}
        outcome = {"code": code, "signal": signal, "at": time.monotonic(), "was_told": was_told, "evidence": ""}
        self._tell("task_exited", **about, **outcome)
        self._out += wire.encode({"kind": "output_ended", **about, "offset": 0})
        self._tell("task_gone", **about)

    def end_all(self) -> None:
        """Let all tasks end successfully."""
        for task in list(self._living):
            self.end(task, code=0)
        self.flush()

    def one(self) -> str | None:
        """Return a living task."""
        return next(iter(self._living), None)

    def flush(self) -> None:
        """Send as much as the socket accepts."""
        try:
            del self._out[: self.connection.send(self._out) if self._out else 0]
        except BlockingIOError:
            pass
        except OSError:
            self._out.clear()  # the supervisor has disconnected
        self._hosts.watch(self, is_full=bool(self._out))


class SimulatedHosts:
    """All hosts of a run. ``told_to_stop``: when the last task got its stop order, on the monotonic clock."""

    def __init__(self, listener: socket.socket, conductor: socket.socket) -> None:
        """Accept supervisors at ``listener`` and commands from ``conductor``."""
        self.told_to_stop = 0.0
        self._killed_at = 0.0
        self._conductor = conductor
        self._agents: list[_Agent] = []
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ, lambda: self._greet(listener))
        self._selector.register(conductor, selectors.EVENT_READ, self._conducted)
        self._is_over = False

    def serve(self) -> None:
        """Serve until the conductor disconnects."""
        while not self._is_over:
            for key, _ in self._selector.select():
                if self._selector.get_map().get(key.fd) is key:
                    call: Callable[[], None] = key.data
                    call()

    def _greet(self, listener: socket.socket) -> None:
        connection, _ = listener.accept()
        agent = _Agent(connection, self)
        self._agents.append(agent)
        self._selector.register(connection, selectors.EVENT_READ, agent.serve)

    def watch(self, agent: _Agent, is_full: bool) -> None:
        """Start or stop calling an agent also when its socket is writable."""
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if is_full else 0)
        if agent.connection.fileno() >= 0 and self._selector.get_key(agent.connection).events != wanted:
            self._selector.modify(agent.connection, wanted, agent.serve)

    def left(self, agent: _Agent) -> None:
        """Close the connection of an agent."""
        if agent.connection.fileno() >= 0:
            self._selector.unregister(agent.connection)
            agent.connection.close()

    def _conducted(self) -> None:
        match self._conductor.recv(1):
            case b"k":
                agent = self._agents[len(self._agents) // 2]
                task = agent.one()
                assert task is not None
                self._killed_at = time.monotonic()
                agent.end(task, signal=9)
                agent.flush()
            case b"f":
                self._conductor.sendall(json.dumps(self.told_to_stop - self._killed_at).encode() + b"\n")
                for agent in self._agents:
                    agent.end_all()
            case _:
                self._is_over = True


class Door:
    """Connects to each of the simulated hosts; implements `transport.base.AgentConnector`."""

    def __init__(self, path: Path) -> None:
        """Prepare to connect to the socket at ``path``."""
        self._path = str(path)

    def open(self) -> "Connection":
        """Connect to an agent."""
        end = socket.socket(socket.AF_UNIX)
        end.connect(self._path)
        return Connection(end)

    def resume(self) -> "Connection":
        """Connect to an agent."""
        return self.open()

    def end(self) -> None:
        """Do nothing: a simulated run leaves nothing behind."""


class Connection:
    """A link to a simulated agent."""

    def __init__(self, end: socket.socket) -> None:
        self.socket = end

    def close(self) -> None:
        """Disconnect."""
        self.socket.close()
