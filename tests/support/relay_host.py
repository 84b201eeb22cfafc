"""A real agent in a private network that is joined with that of another host, which is the test itself."""

from __future__ import annotations

import json
import os
import queue
import socket
import struct
import sys
import threading
import time
from typing import Any

from support.agent_client import LocalAgent
from tflaunch.runtime.network_keys import HostKeys, NetworkKeys
from tflaunch_worker import wire
from tflaunch_worker.agent.relay_frames import ADMITTED, HEADER_BYTES, Frame, read_frame, read_length
from tflaunch_worker.agent.relay_tls import Channel, Contexts

RUN = "run"
HERE, THERE, ELSEWHERE = "127.90.0.1", "127.90.0.2", "127.90.0.3"
"""Virtual addresses: of the agent's host, of the test, and of a third host."""

PATIENCE = 120.0

ECHO = """
import os, socket, sys
server = socket.socket()
server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
server.bind(("", {port}))
server.listen(100)
print("listening", flush=True)
while True:
    connection, (source, _) = server.accept()
    with connection:
        print("from", source, connection.recv(100), flush=True)
        connection.sendall(b"hello")
"""


class RelayHost:
    """The agent, whose task ``worker:0`` has the port ``port`` and prints what it receives."""

    def __init__(self, local: LocalAgent, attempt: int = 1) -> None:
        self.talk = local.talk
        self.attempt = attempt
        self.keys = NetworkKeys()
        self._orders = 0
        self.talk.say("hold_ports", ports={"worker:0": 0}, private=True, relayed=True)
        self.port = int(self.talk.wait_for("ports_held")["ports"]["worker:0"])
        self.server = socket.create_server(("127.0.0.1", 0))
        """Where this test listens as the relay of the other host."""
        self._accepted: queue.Queue[tuple[Frame, Channel]] = queue.Queue()
        self._links: list[Channel] = []
        threading.Thread(target=self._serve, name="other relay", daemon=True).start()
        self.join(attempt)

    def join(self, attempt: int, keys: NetworkKeys | None = None) -> None:
        """Tell the agent of an attempt, whose other task is ``worker:1``."""
        self.attempt = attempt
        self.keys = keys or self.keys
        there = self.server.getsockname()[1]
        order: dict[str, Any] = {"run": RUN, "attempt": attempt, "own": HERE, "port_of": "worker:0", "heartbeat": 60.0}
        order["hosts"] = {HERE: ["127.0.0.1", self.port], THERE: ["127.0.0.1", there]}
        order["tasks"] = {"worker:0": [HERE, self.port], "worker:1": [THERE, 2222]}
        body = json.dumps({**order, **self.keys.issue(HERE)._asdict()}).encode("ascii")
        self.talk.connection.sendall(wire.encode({"kind": "set_network"}, body))

    def start(self, text: str, task: str = "worker:0", **order: Any) -> None:
        """Start a task in the private network."""
        env = {"TFLAUNCH_RUN": f"test-{os.getpid()}", "TFLAUNCH_TASK": task, "TFLAUNCH_ATTEMPT": "0"}
        about = {"env": env, "unset": [], "workdir": "/", "inherit": True, "private": True, "port": 0, **order}
        self.talk.say("start_task", task=task, attempt=0, argv=[sys.executable, "-c", text], **about)

    def start_echo(self) -> None:
        """Start the task that has the port."""
        self.start(ECHO.format(port=self.port), port=self.port)
        self.talk.wait_until(lambda: self.talk.output.get(("worker:0", 0)))

    def refused(self) -> int:
        """Return how many connections to the task were refused, as it is measured."""
        self.talk.heard = [message for message in self.talk.heard if message["kind"] != "measured"]
        self.talk.say("measure")
        return int(self.talk.wait_for("measured")["tasks"]["worker:0"].get("refused", 0))

    def wait_refused(self, count: int) -> bool:
        """Return whether exactly ``count`` connections are refused; relays report them with a delay."""
        end = time.monotonic() + PATIENCE
        while (known := self.refused()) < count and time.monotonic() < end:
            time.sleep(0.1)
        return known == count

    def connect(self) -> socket.socket:
        """Connect to the relay's port, which must listen."""
        return socket.create_connection(("127.0.0.1", self.port), PATIENCE)

    def call(self, frame: bytes, keys: HostKeys | None = None, patience: float = PATIENCE) -> bytes:
        """Send a first frame with a certificate, by default that of the other host; return all that is answered."""
        contexts = Contexts(*(keys or self.keys.issue(THERE)))
        with Channel(self.connect(), contexts.client, HERE) as channel:
            channel.shake_hands(patience)
            channel.send(frame)
            answer = channel.receive(1)
            if answer == ADMITTED:
                channel.send(b"data")
                answer += channel.receive(5)
            return answer

    def accept(self) -> tuple[Frame, Channel]:
        """Accept the next connection of the agent's relay that is for a task; return its frame."""
        return self._accepted.get(timeout=PATIENCE)

    def _serve(self) -> None:
        """Admit all connections, and keep the links: a relay that does not answer counts as silent."""
        self.server.settimeout(PATIENCE)
        while True:
            try:
                connection, _ = self.server.accept()
            except OSError:
                return  # the test is over
            channel = Channel(connection, Contexts(*self.keys.issue(THERE)).server)
            try:
                channel.shake_hands(PATIENCE)
                frame = read_frame(channel.receive(read_length(channel.receive(HEADER_BYTES))))
                channel.send(ADMITTED)
            except (OSError, ValueError):
                channel.connection.close()  # it has other keys, or has ended
                continue
            if frame.target:
                self._accepted.put((frame, channel))
            else:
                self._links.append(channel)


def reset(connection: socket.socket) -> None:
    """Close a connection without a trace that lasts, as many follow."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()
