"""Ask the kernel for a list over netlink(7), such as this machine's addresses."""

from __future__ import annotations

import socket
import struct
from typing import Iterator, List

_REQUEST_DUMP = 0x301  # NLM_F_REQUEST | NLM_F_DUMP
_ERROR, _DONE = 2, 3
_HEADER = struct.Struct("=IHHII")  # struct nlmsghdr: length, type, flags, sequence, sender
_ATTRIBUTE = struct.Struct("=HH")  # struct nlattr and struct rtattr: length, type
_RECEIVE = 64 * 1024
_PATIENCE = 1.0  # seconds; the answer arrives at once or never
_NETLINK_ROUTE = 0
_GET_ADDRESS = 22  # RTM_GETADDR
_ABOUT = struct.Struct("=BBBBI")  # struct ifaddrmsg: family, prefix, flags, scope, interface
_ADDRESS, _LOCAL = 1, 2
_LINK = 253  # the scope of addresses that are unique on one network only
LOOPBACK = ("127.0.0.1", "::1")
"""Addresses from which every host reaches itself."""
_MOST_ADDRESSES = 256


def dump(protocol: int, kind: int, question: bytes) -> Iterator[bytes]:
    """Yield the answer's messages without headers; raise `OSError` if refused."""
    header = _HEADER.pack(_HEADER.size + len(question), kind, _REQUEST_DUMP, 0, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, protocol) as kernel:
        kernel.settimeout(_PATIENCE)
        kernel.send(header + question)
        while True:
            data = kernel.recv(_RECEIVE)
            start = 0
            while start < len(data):
                length, answer, _, _, _ = _HEADER.unpack_from(data, start)
                if answer == _DONE:
                    return
                if answer == _ERROR:
                    raise OSError("the kernel does not answer this question")
                yield data[start + _HEADER.size : start + length]
                start += (length + 3) & ~3


def attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield type and value of each attribute after the fixed part of a message."""
    at = 0
    while at + _ATTRIBUTE.size <= len(data):
        length, kind = _ATTRIBUTE.unpack_from(data, at)
        if length < _ATTRIBUTE.size:
            return
        yield kind, data[at + _ATTRIBUTE.size : at + length]
        at += (length + 3) & ~3


def interface_addresses() -> List[str]:
    """Return the addresses of all interfaces but link-local ones; [] if unknown."""
    found = set(LOOPBACK)
    try:
        for message in dump(_NETLINK_ROUTE, _GET_ADDRESS, _ABOUT.pack(socket.AF_UNSPEC, 0, 0, 0, 0)):
            address = _address(message)
            if address and not address.startswith("127."):
                found.add(address)
    except OSError:
        return []
    return sorted(found)[:_MOST_ADDRESSES]


def _address(message: bytes) -> str:
    """Return the address in a message of the kernel, "" for one of no use to us."""
    family, _, _, scope, _ = _ABOUT.unpack_from(message)
    if scope == _LINK or family not in (socket.AF_INET, socket.AF_INET6):
        return ""
    known = dict(attributes(message[_ABOUT.size :]))
    packed = known.get(_LOCAL) or known.get(_ADDRESS)  # with a peer, _ADDRESS is the other end's
    return socket.inet_ntop(family, packed) if packed else ""
