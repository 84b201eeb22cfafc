"""Check before the start that the tasks' hosts resolve and reach each other.

Otherwise a port closed by a firewall, or a name that resolves to another machine, would make TensorFlow wait silently.
A caller also proves that it knows the run's secret, so that the address that it comes from, which may be that of a
router, is known to belong to the cluster.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import socket
from functools import partial
from typing import Callable, Dict, List, Set

from tflaunch_worker.agent.network.fence import plain
from tflaunch_worker.agent.network.ports import open_socket
from tflaunch_worker.event_loop import Loop

_BACKLOG = 1024
_LOOK_AGAIN = 0.05  # seconds before a refused connection is retried
_LONGEST = 256
_CHALLENGE = 33  # bytes: hexadecimal digits and the end of the line
_PROOF = 64  # bytes
_MOST_SOURCES = 1024
SOMETHING_ELSE = "something else answers there"


class Listeners:
    """Listeners on held ports in place of tasks; each caller gets run and task."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._sockets: Dict[int, socket.socket] = {}

    def listen(self, ports: Dict[str, int], run: str, secret: str, seen: Callable[[str], None]) -> None:
        """Listen for tasks; call ``seen`` with each address whose caller has the secret.

        Raises `OSError` if a port cannot be listened on.
        """
        sources: Set[str] = set()

        def proven(source: str) -> None:
            if source not in sources and len(sources) < _MOST_SOURCES:
                sources.add(source)
                seen(source)

        for task, port in ports.items():
            listener = _listener(port)
            self._watch(listener, partial(self._greet, listener, _words(run, task), secret, proven))

    def close(self) -> None:
        """Stop listening, so that the tasks can use the ports."""
        for descriptor, one in self._sockets.items():
            self._loop.forget(descriptor)
            try:
                one.shutdown(socket.SHUT_RDWR)  # shutdown, because forks of ours may have inherited the socket
            except OSError:
                pass  # the other side has disconnected
            one.close()
        self._sockets.clear()

    def _watch(self, one: socket.socket, call: Callable[[], None]) -> None:
        one.setblocking(False)
        self._sockets[one.fileno()] = one
        self._loop.watch(one.fileno(), call)

    def _greet(self, listener: socket.socket, words: bytes, secret: str, proven: Callable[[str], None]) -> None:
        """Send run, task and a challenge.

        The caller closes first, so that no connection in TIME_WAIT remains on the task's port.
        """
        try:
            connection, address = listener.accept()
        except OSError:
            return
        challenge = os.urandom(_CHALLENGE // 2).hex().encode("ascii")
        proof = _proof(secret, challenge)
        self._watch(connection, partial(self._hear, connection, proof, partial(proven, plain(address[0]))))
        try:
            connection.send(words + challenge + b"\n")
        except OSError:
            pass  # the caller has already disconnected

    def _hear(self, connection: socket.socket, proof: bytes, proven: Callable[[], None]) -> None:
        """Take a caller's proof; close the connection once the caller has."""
        try:
            heard = connection.recv(_PROOF)
        except OSError:
            heard = b""
        if heard:
            if heard == proof:  # each challenge has one answer, so the time of the comparison tells nothing
                proven()
            return
        del self._sockets[connection.fileno()]
        self._loop.forget(connection.fileno())
        connection.close()


def _proof(secret: str, challenge: bytes) -> bytes:
    return hmac.new(secret.encode("utf-8"), challenge, hashlib.sha256).hexdigest().encode("ascii")


def _words(run: str, task: str) -> bytes:
    return "{} {} ".format(run, task).encode("utf-8")[-_LONGEST:]


def _listener(port: int) -> socket.socket:
    listener = open_socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("", port))
    listener.listen(_BACKLOG)
    return listener


def probe_all(peers: Dict[str, List[object]], run: str, secret: str, patience: float) -> Dict[str, str]:
    """Return why tasks cannot be reached within ``patience`` seconds, by task.

    ``peers``: task to its host and port. Only hosts of the run know its ``secret``.
    """
    import asyncio  # takes 40 ms, and only this fork needs it

    reasons = dict.fromkeys(peers, "timed out")

    async def probe(task: str, address: str, port: int) -> None:
        """Connect, and again if that fails: the other host may not listen yet."""
        words, heard = _words(run, task), b""
        while True:
            try:
                reader, writer = await asyncio.open_connection(address, port)
                heard = await reader.readexactly(len(words) + _CHALLENGE)
            except asyncio.IncompleteReadError:
                pass
            except OSError as error:
                reasons[task] = os.strerror(error.errno or 0).lower()
                await asyncio.sleep(_LOOK_AGAIN)
                continue
            is_ours = heard.startswith(words) and heard.endswith(b"\n")
            if is_ours:
                writer.write(_proof(secret, heard[len(words) : -1]))
            writer.close()
            reasons[task] = "" if is_ours else SOMETHING_ELSE
            return

    async def probe_each() -> None:
        tries = []
        for task, (host, port) in peers.items():  # the time for resolving names does not count
            try:
                found = socket.getaddrinfo(str(host), int(str(port)), 0, socket.SOCK_STREAM)[0]
                tries.append(asyncio.ensure_future(probe(task, str(found[4][0]), int(str(port)))))
            except (OSError, UnicodeError):
                reasons[task] = "its name is not known there"
        if tries:
            await asyncio.wait(tries, timeout=patience)

    asyncio.run(probe_each())
    return {task: reason for task, reason in reasons.items() if reason}


_PATIENCE = 8  # seconds for all names together; resolvers give up on a dead server after 5
_AT_ONCE = 16


def look_up_names(names: list[str]) -> dict[str, str]:
    """Return each name's addresses, joined by spaces, or ""; may take seconds."""
    from concurrent.futures import ThreadPoolExecutor, wait  # takes 12 ms, and only this fork needs it

    # no limit: those that are not done are left behind
    pool = ThreadPoolExecutor(_AT_ONCE)  # not waited for at the end: this process then exits
    answers = {name: pool.submit(_address, name) for name in names}
    wait(answers.values(), _PATIENCE)
    # no limit: those that are not done are left behind
    return {name: answer.result() if answer.done() else "" for name, answer in answers.items()}


def _address(name: str) -> str:
    try:
        entries = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return ""
    return " ".join(sorted({str(entry[4][0]) for entry in entries}))
