"""Read what the kernel knows about single TCP connections (struct tcp_info), over sock_diag(7).

The connections of a port are listed once; from then on the kernel looks each one up, which takes microseconds, whereas
a list visits every connection of the machine.

Standard library only, Python >= 3.8: this module runs on hosts.
"""

from __future__ import annotations

import socket
import struct

from tflaunch_worker import netlink, sock_diag

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Collection

_REQUEST = 1  # NLM_F_REQUEST
_ERROR = 2
_HEADER = struct.Struct("=IHHII")
_IDENTITY = slice(4, 52)  # of struct inet_diag_msg
_SOURCE, _DESTINATION = slice(4, 20), slice(20, 36)  # addresses in an identity
_MAPPED = bytes(10) + b"\xff\xff"  # prefix of an IPv4 address that is mapped to IPv6
_PORT = slice(4, 6)
_MESSAGE = 72  # bytes of struct inet_diag_msg
_RECEIVE = 8192
_PATIENCE = 1.0  # seconds; the kernel answers at once


class Connection:
    """An established connection: ``family``, and ``identity``, the kernel's bytes for its addresses and ports."""

    __slots__ = ("family", "identity")

    def __init__(self, family: int, identity: bytes) -> None:
        self.family = family
        self.identity = identity

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Connection) and self.identity == other.identity

    def __hash__(self) -> int:
        return hash(self.identity)

    def addresses(self) -> tuple[str, str]:
        """Return the addresses of this end and of the other one, IPv4 where it is mapped to IPv6."""
        return self._address(_SOURCE), self._address(_DESTINATION)

    def _address(self, place: slice) -> str:
        data = self.identity[place]
        if self.family == socket.AF_INET6 and data[:12] != _MAPPED:
            return socket.inet_ntop(socket.AF_INET6, data)
        return socket.inet_ntoa(data[:4] if self.family == socket.AF_INET else data[12:])


class TcpInfo:
    """A connection at one moment.

    ``sent_ago`` and ``received_ago`` are milliseconds since data was last sent or received (accurate to a tick of the
    kernel, 1 to 10 ms); ``sent`` and ``received`` are bytes; ``rtt`` is the shortest round trip of some minutes, in
    microseconds, as others include delayed acknowledgements; ``segments`` counts those with data that were sent, and
    ``retransmitted`` those that were sent again. ``queued`` are bytes that wait to be sent; ``held`` is for how many
    microseconds the receiver's program took none, so far.
    """

    __slots__ = ("held", "queued", "received", "received_ago", "retransmitted", "rtt", "segments", "sent", "sent_ago")
    held: int
    queued: int
    received: int
    received_ago: int
    retransmitted: int
    rtt: int
    segments: int
    sent: int
    sent_ago: int

    def __init__(self, **figures: int) -> None:
        """Take these figures by name; all others are 0."""
        for name in self.__slots__:
            setattr(self, name, figures.get(name, 0))


def connections(ports: Collection[int]) -> dict[int, list[Connection]]:
    """Return the established connections of each local port.

    Raises:
        OSError: the kernel or its permissions do not allow it.
    """
    found: dict[int, list[Connection]] = {port: [] for port in ports}
    for family in (socket.AF_INET, socket.AF_INET6):
        for message in sock_diag.sockets(family, sock_diag.ESTABLISHED):
            port = int.from_bytes(message[_PORT], "big")
            if port in found:
                found[port].append(Connection(message[0], bytes(message[_IDENTITY])))
    return found


class TcpReader:
    """Asks the kernel about connections, over one netlink socket that stays open."""

    def __init__(self) -> None:
        """Open the socket.

        Raises:
            OSError: the kernel or its permissions do not allow it.
        """
        self._kernel = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, sock_diag.PROTOCOL)
        self._kernel.settimeout(_PATIENCE)

    def read(self, connection: Connection) -> TcpInfo | None:
        """Return a connection as it is now; None if it is gone, or the kernel does not tell what is needed.

        Raises:
            OSError: the kernel does not answer.
        """
        question = sock_diag.question(connection.family, sock_diag.ESTABLISHED, True, connection.identity)
        header = _HEADER.pack(_HEADER.size + len(question), sock_diag.BY_FAMILY, _REQUEST, 0, 0)
        self._kernel.send(header + question)
        answer = self._kernel.recv(_RECEIVE)
        _, kind, _, _, _ = _HEADER.unpack_from(answer)
        return None if kind == _ERROR else _parse(answer[_HEADER.size :])

    def close(self) -> None:
        """Close the socket."""
        self._kernel.close()


def _parse(message: bytes) -> TcpInfo | None:
    for kind, value in netlink.attributes(message[_MESSAGE:]):
        if kind == sock_diag.INFO and len(value) >= _END:
            return TcpInfo(**{name: number.unpack_from(value, at)[0] for name, (at, number) in _FIELDS.items()})
    return None


_SHORT, _LONG = struct.Struct("=I"), struct.Struct("=Q")
_FIELDS = {
    "sent_ago": (44, _SHORT),  # tcpi_last_data_sent
    "received_ago": (52, _SHORT),  # tcpi_last_data_recv
    "retransmitted": (100, _SHORT),  # tcpi_total_retrans
    "received": (128, _LONG),  # tcpi_bytes_received
    "queued": (144, _SHORT),  # tcpi_notsent_bytes
    "rtt": (148, _SHORT),  # tcpi_min_rtt
    "segments": (156, _SHORT),  # tcpi_data_segs_out
    "held": (176, _LONG),  # tcpi_rwnd_limited
    "sent": (200, _LONG),  # tcpi_bytes_sent
}
"""Offset in struct tcp_info, and size."""
_END = 208
