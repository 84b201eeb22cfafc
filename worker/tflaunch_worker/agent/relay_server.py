"""The process that relays connections between the tasks of this host and those of others.

Each two hosts have one more connection, the link, which carries no data but TCP keepalives. When the other side does
not answer them, all connections with that host are aborted: TensorFlow itself would wait without limit.

The process has a thread per connection.

Standard library only, Python >= 3.8: this module runs on hosts.
"""

from __future__ import annotations

import errno
import selectors
import socket
import ssl
import struct
import threading
import time
from contextlib import contextmanager

from tflaunch_worker.agent.fence import plain
from tflaunch_worker.agent.relay_frames import (
    ADMITTED,
    HEADER_BYTES,
    LINK,
    REFUSED,
    Frame,
    Network,
    read_frame,
    read_length,
    why_refused,
)
from tflaunch_worker.agent.relay_sockets import BACKLOG, CONNECT_SECONDS, SocketMaker
from tflaunch_worker.agent.relay_tls import Channel, Contexts
from tflaunch_worker.forkserver.messages import receive_message, send_message

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Dict, Iterator, NoReturn, Set, Tuple

_PATIENCE = 10.0  # seconds for the handshake and the first frame
_MOST_PENDING = 128  # connections that are not admitted yet
_MOST_SOURCES = 1024  # different refusals in one report to the agent
_PAUSE = 0.25  # seconds between two attempts to reach a host, and between two reports
_STACK = 512 * 1024  # bytes per thread
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: close() resets the connection
_SILENT = (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH)


class RelayServer:
    """Accepts connections from tasks and relays. Threads only read ``self._network``, which is replaced as a whole."""

    def __init__(self, agent: socket.socket, to_maker: socket.socket) -> None:
        self._agent = agent
        self._maker = SocketMaker(to_maker)
        self._selector = selectors.DefaultSelector()
        self._network: _ActiveNetwork | None = None
        self._outer: socket.socket | None = None
        self._listeners: Dict[Tuple[str, int], socket.socket] = {}
        self._pending = threading.BoundedSemaphore(_MOST_PENDING)
        self._refusals = _Refusals(agent)

    def serve(self) -> NoReturn:
        """Serve until the agent ends."""
        threading.stack_size(_STACK)
        _in_thread(self._refusals.report)
        self._selector.register(self._agent, selectors.EVENT_READ, self._configure)
        while True:
            for key, _ in self._selector.select():
                key.data()

    def _configure(self) -> None:
        order, descriptors = receive_message(self._agent)
        before, network = self._network, _ActiveNetwork(Network(order))
        if before is not None and before.about.attempt == network.about.attempt:
            network.channels = before.channels
        self._network = network
        self._listen_outside(socket.socket(fileno=descriptors[0]))
        self._listen_inside(network.about)
        if before is not None:
            before.links.end()
            if network.channels is not before.channels:
                before.channels.end()  # their tasks are dead
        for address in network.about.hosts:
            if address != network.about.own:
                _in_thread(self._keep_link, network, address)

    def _listen_outside(self, listener: socket.socket) -> None:
        if self._outer is not None:
            self._selector.unregister(self._outer)
            self._outer.close()
        listener.setblocking(False)
        listener.listen(BACKLOG)
        self._outer = listener
        self._selector.register(listener, selectors.EVENT_READ, lambda: self._accept_outside(listener))

    def _listen_inside(self, about: Network) -> None:
        wanted = {endpoint: task for task, endpoint in about.tasks.items() if endpoint[0] != about.own}
        for endpoint in [endpoint for endpoint in self._listeners if endpoint not in wanted]:
            self._selector.unregister(self._listeners[endpoint])
            self._listeners.pop(endpoint).close()
        for endpoint in wanted:
            if endpoint not in self._listeners:
                self._listeners[endpoint] = listener = self._maker.listen(*endpoint)
                listener.setblocking(False)
                accept = lambda listener=listener, endpoint=endpoint: self._accept_inside(listener, endpoint)  # noqa: E731
                self._selector.register(listener, selectors.EVENT_READ, accept)

    # ---- connections from tasks of this host

    def _accept_inside(self, listener: socket.socket, endpoint: Tuple[str, int]) -> None:
        try:
            connection, _ = listener.accept()
        except OSError:
            return  # the client has already closed it
        network = self._network
        assert network is not None
        task = next((task for task, known in network.about.tasks.items() if known == endpoint), None)
        if task is None or endpoint[0] in network.silent:
            _reset(connection)  # at once: a gRPC call that waits for a connection may block all others
        else:
            _in_thread(self._relay_out, network, connection, task)

    def _relay_out(self, network: _ActiveNetwork, connection: socket.socket, task: str) -> None:
        address = network.about.tasks[task][0]
        try:
            with network.dial(address, task) as channel, network.channels.hold(address, channel):
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                channel.exchange(connection)
        except OSError:
            _reset(connection)
        else:
            connection.close()

    # ---- connections from outside: other relays, and clients that are refused

    def _accept_outside(self, listener: socket.socket) -> None:
        try:
            connection, address = listener.accept()
        except OSError:
            return  # the client has already closed it
        network, source = self._network, plain(address[0])
        assert network is not None
        if self._pending.acquire(blocking=False):
            _in_thread(self._admit, network, connection, source)
        else:
            _reset(connection)
            self._refusals.note(network.about.port_of, source, "too many connections were pending")

    def _admit(self, network: _ActiveNetwork, connection: socket.socket, source: str) -> None:
        """Let a connection through if its certificate and its first frame are those of the run."""
        with Channel(connection, network.contexts.server) as channel:
            try:
                frame, certified = self._receive_frame(network, channel, source)
                inner = self._open(network, frame, certified)
            except (OSError, ValueError):
                return
            finally:
                self._pending.release()
            self._serve(network, channel, frame, inner)

    def _receive_frame(self, network: _ActiveNetwork, channel: Channel, source: str) -> Tuple[Frame, str]:
        """Return the first frame and the address in the certificate; report a connection that is refused.

        Raises:
            OSError: the connection ended or broke, or the other side refuses it.
            ValueError: it is refused.
        """
        target, reason = network.about.port_of, ""
        try:
            channel.shake_hands(_PATIENCE)
            frame = read_frame(channel.receive(read_length(channel.receive(HEADER_BYTES))))
            reason = why_refused(frame, channel.peer(), network.about)
            if frame.target in network.about.own_tasks:
                target = frame.target
        except ssl.SSLError as error:
            if "ALERT" in (error.reason or ""):
                raise  # the other side refused: it may not have the keys of a new supervisor yet
            reason = f"it has no certificate of this run ({_reason_of(error)})"
        except ValueError as error:
            reason = f"its first frame is malformed: {error}"
        except OSError:
            reason = "it ended or fell silent before its first frame"
        if reason:
            self._refusals.note(target, source, reason)
            channel.send(REFUSED)
            raise ValueError(reason)
        return frame, channel.peer()

    def _open(self, network: _ActiveNetwork, frame: Frame, certified: str) -> socket.socket | None:
        """Return a connection to the task that a frame is for; None for a link.

        Raises:
            OSError: the task does not listen, or the frame is of an attempt that has ended since the connection was
                accepted, or of one that this relay does not know of yet.
        """
        current = self._network
        if current is None or frame.attempt != current.about.attempt:
            raise ConnectionRefusedError
        return None if frame.target == LINK else self._maker.connect(certified, *network.about.tasks[frame.target])

    def _serve(self, network: _ActiveNetwork, channel: Channel, frame: Frame, inner: socket.socket | None) -> None:
        """Admit a connection, and serve it until it ends."""
        try:
            if inner is None:
                channel.send(ADMITTED)
                enable_keepalive(channel.connection, network.about.heartbeat)
                channel.wait_for_end()
                return
            inner.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with network.channels.hold(frame.source, channel):
                channel.send(ADMITTED)
                channel.exchange(inner)
        except OSError:
            if inner is not None:
                _reset(inner)
        else:
            inner.close()

    # ---- links

    def _keep_link(self, network: _ActiveNetwork, address: str) -> None:
        """Keep a link to another host while the network is used; abort all connections if the host is silent."""
        while self._network is network:
            try:
                with network.dial(address, LINK) as channel, network.links.hold(address, channel):
                    network.silent.discard(address)
                    enable_keepalive(channel.connection, network.about.heartbeat)
                    channel.wait_for_end()
            except OSError as error:
                if isinstance(error, socket.timeout) or error.errno in _SILENT:
                    network.silent.add(address)
                    network.channels.abort_all(address)
                else:
                    network.silent.discard(address)  # it refused, so it is alive
            time.sleep(_PAUSE)


class _ActiveNetwork:
    """A network with its TLS contexts, its open connections by host, and the hosts that are silent."""

    def __init__(self, about: Network) -> None:
        self.about = about
        self.contexts = Contexts(*about.keys)
        self.channels = _Channels()
        self.links = _Channels()
        self.silent: Set[str] = set()

    def dial(self, address: str, target: str) -> Channel:
        """Return an admitted connection to the relay of a host.

        Raises:
            OSError: the host cannot be reached, or it refuses.
        """
        patience = min(max(self.about.heartbeat, 1.0), CONNECT_SECONDS)
        connection = socket.create_connection(self.about.hosts[address], patience)
        try:
            channel = Channel(connection, self.contexts.client, address)
            channel.shake_hands(patience)
            channel.send(Frame(self.about.run, self.about.attempt, self.about.own, target).encode())
            _check_answer(channel.receive(len(ADMITTED)))
        except BaseException:
            connection.close()
            raise
        return channel


class _Channels:
    """Open connections by the address of the host at their other end."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: Dict[str, Set[Channel]] = {}
        self._is_ended = False

    @contextmanager
    def hold(self, address: str, channel: Channel) -> Iterator[None]:
        """Count a connection as open.

        Raises:
            ConnectionAbortedError: `end` was called while the connection was being made.
        """
        with self._lock:
            if self._is_ended:
                raise ConnectionAbortedError(errno.ECONNABORTED, "it is of a network that has been replaced")
            self._open.setdefault(address, set()).add(channel)
        try:
            yield
        finally:
            with self._lock:
                self._open[address].discard(channel)

    def end(self) -> None:
        """Abort all connections, and admit no others."""
        with self._lock:
            self._is_ended = True
            for address in self._open:
                self._abort(address)

    def abort_all(self, address: str) -> None:
        """Abort all connections with one host."""
        with self._lock:
            self._abort(address)

    def _abort(self, address: str) -> None:
        for channel in self._open.get(address, ()):
            channel.abort()


class _Refusals:
    """Reports refused connections to the agent, at most a few times per second."""

    def __init__(self, agent: socket.socket) -> None:
        self._agent = agent
        self._lock = threading.Lock()
        self._is_some = threading.Event()
        self._counts: Dict[Tuple[str, str, str], int] = {}

    def note(self, task: str, source: str, reason: str) -> None:
        """Count a refused connection."""
        with self._lock:
            key = task, source, reason
            if key in self._counts or len(self._counts) < _MOST_SOURCES:
                self._counts[key] = self._counts.get(key, 0) + 1
        self._is_some.set()

    def report(self) -> NoReturn:
        """Report until this process ends."""
        while True:
            self._is_some.wait()
            self._is_some.clear()
            with self._lock:
                counts, self._counts = self._counts, {}
            send_message(self._agent, {"refused": [[*key, count] for key, count in counts.items()]})
            time.sleep(_PAUSE)


def enable_keepalive(connection: socket.socket, heartbeat: float) -> None:
    """Enable TCP keepalive, with which the kernel ends a connection after ``heartbeat`` seconds without an answer."""
    every = 1  # second
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, every)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, every)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, max(round(heartbeat) - every, 1))


def _check_answer(answer: bytes) -> None:
    if answer != ADMITTED:
        raise ConnectionRefusedError(errno.ECONNREFUSED, "the other relay refused it")


def _in_thread(function: Callable[..., None], *arguments: object) -> None:
    threading.Thread(target=function, args=arguments, daemon=True).start()


def _reset(connection: socket.socket) -> None:
    """Close a connection so that the other side sees that it failed."""
    with connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)


def _reason_of(error: ssl.SSLError) -> str:
    return (error.reason or "TLS").replace("_", " ").lower()
