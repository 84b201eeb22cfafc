"""TLS 1.3 between the relays of a run, with certificates on both sides that an authority of the run has issued.

A certificate is for the virtual address of one host. Keys come over the supervisor's link and are never on a disk.

Standard library only, Python >= 3.8: this module runs on hosts.
"""

from __future__ import annotations

import os
import select
import socket
import ssl
import time
from contextlib import contextmanager

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Iterator, TypeVar

    T = TypeVar("T")

_CHUNK = 256 * 1024
_NOTHING = memoryview(b"")
_SHORTEST_WAIT = 0.01  # seconds


class Contexts:
    """The TLS contexts of a host: ``server`` for connections that it accepts, ``client`` for those that it makes."""

    def __init__(self, authority: str, certificate: str, key: str) -> None:
        """Prepare from PEM texts.

        Raises:
            OSError: this system keeps no files in memory, or the texts are not certificates (ssl.SSLError).
        """
        with _file_in_memory(certificate + key) as path:
            self.server = _context(ssl.PROTOCOL_TLS_SERVER, authority, path)
            self.client = _context(ssl.PROTOCOL_TLS_CLIENT, authority, path)
        self.server.num_tickets = 0


def why_unavailable() -> str:
    """Return why relays cannot use TLS on this host, or ""."""
    if not ssl.HAS_TLSv1_3:
        return f"its Python has no TLS 1.3 ({ssl.OPENSSL_VERSION})"
    return "" if hasattr(os, "memfd_create") else "its Python cannot keep keys in memory (no memfd_create)"


def _context(kind: int, authority: str, path: str) -> ssl.SSLContext:
    context = ssl.SSLContext(kind)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=authority)
    context.load_cert_chain(path)
    return context


@contextmanager
def _file_in_memory(text: str) -> Iterator[str]:
    """Yield the path of a file in memory: `ssl` reads a key only from a path."""
    if not hasattr(os, "memfd_create"):
        raise OSError("this system has no memfd_create")
    descriptor = os.memfd_create("tflaunch")
    try:
        os.write(descriptor, text.encode("ascii"))
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


class Channel:
    """A TLS connection to another relay. Only `abort` may be called by other threads than the one that uses it."""

    def __init__(self, connection: socket.socket, context: ssl.SSLContext, server: str | None = None) -> None:
        """Wrap ``connection``, which is closed with the channel.

        Args:
            connection: a connected socket.
            context: of `Contexts`.
            server: the address for which the other side must have a certificate; None if this side is the server.
        """
        self.connection = connection
        self._received, self._to_send = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._received, self._to_send, server is None, server)
        self._until = 0.0
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self) -> Channel:
        """Return it."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.connection.close()

    def abort(self) -> None:
        """Break the connection; the thread that uses it gets an OSError."""
        try:
            self.connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # it has ended

    def shake_hands(self, patience: float) -> None:
        """Do the TLS handshake, with a check of the certificates; ``patience`` also limits `receive` and `send` after.

        Raises:
            OSError: it failed (ssl.SSLError), or took longer.
        """
        self._until = time.monotonic() + patience
        self._repeat(self._tls.do_handshake)

    def peer(self) -> str:
        """Return the address for which the other side has a certificate."""
        names: Any = (self._tls.getpeercert() or {}).get("subjectAltName", ())
        return "".join(value for kind, value in names if kind == "IP Address")

    def send(self, data: bytes) -> None:
        """Send all of this.

        Raises:
            OSError: the connection broke, or the time is up.
        """
        self._tls.write(data)
        self._flush()

    def receive(self, count: int) -> bytes:
        """Return exactly ``count`` bytes.

        Raises:
            OSError: the connection ended or broke, or the time is up.
        """
        data = b""
        while len(data) < count:
            missing = count - len(data)
            more = self._repeat(lambda: self._tls.read(missing))  # noqa: B023 - it is called at once
            if not more:
                raise ConnectionError("it ended the connection")
            data += more
        return data

    def wait_for_end(self) -> None:
        """Wait without a time limit until the other side ends the connection; discard what it sends.

        Raises:
            OSError: the connection broke.
        """
        self.connection.settimeout(None)
        while self.connection.recv(_CHUNK):
            pass

    def _repeat(self, call: Callable[[], T]) -> T:
        """Call a function, and again for as long as it needs more bytes from the other side."""
        while True:
            try:
                return call()
            except ssl.SSLWantReadError:
                pass
            finally:
                self._flush()  # also the alert that says what is wrong
            self._limit_wait()
            data = self.connection.recv(_CHUNK)
            if not data:
                raise ConnectionError("it ended the connection")
            self._received.write(data)

    def _flush(self) -> None:
        data = self._to_send.read()
        if data:
            self._limit_wait()
            self.connection.sendall(data)

    def _limit_wait(self) -> None:
        self.connection.settimeout(max(self._until - time.monotonic(), _SHORTEST_WAIT))

    def exchange(self, other: socket.socket) -> None:
        """Copy data in both directions until both ends have sent their end of file, which is passed on.

        Raises:
            OSError: either end broke.
        """
        _Exchange(self._tls, self._received, self._to_send, self.connection, other).run()


class _Exchange:
    """Copies data between an encrypted connection (outer) and a plain one (inner), without blocking on either."""

    def __init__(
        self,
        tls: ssl.SSLObject,
        received: ssl.MemoryBIO,
        to_send: ssl.MemoryBIO,
        outer: socket.socket,
        inner: socket.socket,
    ) -> None:
        self._tls = tls
        self._received = received
        self._to_send = to_send
        self._outer = outer
        self._inner = inner
        self._plain = memoryview(bytearray(_CHUNK))
        self._decrypted = memoryview(bytearray(2 * _CHUNK))  # more than one read and the rest of the one before
        self._for_outer = self._for_inner = _NOTHING
        self._is_inner_open = self._is_outer_open = True  # whether more may come from there

    def run(self) -> None:
        for one in (self._inner, self._outer):
            one.setblocking(False)
        self._decrypt()  # what came with the handshake
        while self._is_inner_open or self._is_outer_open or self._for_inner or self._for_outer:
            inner, outer = self._wait()
            if outer & ~select.POLLOUT and self._is_outer_open and not self._for_inner:
                self._read_outer()
            if inner & ~select.POLLOUT and self._is_inner_open and not self._for_outer:
                self._read_inner()
            if self._for_inner:
                self._write_inner()
            if self._for_outer:
                self._for_outer = _send(self._outer, self._for_outer)

    def _wait(self) -> tuple[int, int]:
        """Wait until something can be done; return the events of both ends."""
        poll = select.poll()  # only of ends that can be read or written now: others would wake it continuously
        masks = (
            (self._inner, self._is_inner_open and not self._for_outer, self._for_inner),
            (self._outer, self._is_outer_open and not self._for_inner, self._for_outer),
        )
        for one, reads, writes in masks:
            mask = (select.POLLIN if reads else 0) | (select.POLLOUT if writes else 0)
            if mask:
                poll.register(one, mask)
        found = dict(poll.poll())
        return found.get(self._inner.fileno(), 0), found.get(self._outer.fileno(), 0)

    def _read_inner(self) -> None:
        try:
            count = self._inner.recv_into(self._plain)
        except BlockingIOError:
            return
        if count:
            self._tls.write(self._plain[:count])
        else:
            self._is_inner_open = False
            try:
                self._tls.unwrap()  # sends close_notify; that of the other side may come later
            except ssl.SSLWantReadError:
                pass
        self._for_outer = memoryview(self._to_send.read())

    def _read_outer(self) -> None:
        try:
            data = self._outer.recv(_CHUNK)
        except BlockingIOError:
            return
        if not data:
            raise ConnectionError("the connection ended without close_notify")
        self._received.write(data)
        self._decrypt()

    def _decrypt(self) -> None:
        count = 0
        try:
            while True:
                rest = self._decrypted[count:]
                more: Any = self._tls.read(len(rest), rest)  # a number, as it gets a buffer
                if not more:
                    break
                count += more
        except ssl.SSLWantReadError:
            self._for_inner = self._decrypted[:count]
            return
        except ssl.SSLZeroReturnError:
            pass
        self._for_inner = self._decrypted[:count]
        self._is_outer_open = False
        if not count:
            self._end_inner()

    def _write_inner(self) -> None:
        self._for_inner = _send(self._inner, self._for_inner)
        if not self._for_inner and not self._is_outer_open:
            self._end_inner()

    def _end_inner(self) -> None:
        try:
            self._inner.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # it has ended


def _send(connection: socket.socket, data: memoryview) -> memoryview:
    """Send what the connection takes; return the rest."""
    try:
        return data[connection.send(data) :]
    except BlockingIOError:
        return data
