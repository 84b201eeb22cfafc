"""Read the addresses of this machine's interfaces, from which it connects."""

from __future__ import annotations

import socket
import struct
from typing import List

from tflaunch_worker import netlink

_NETLINK_ROUTE = 0
_GET_ADDRESS = 22  # RTM_GETADDR
_ABOUT = struct.Struct("=BBBBI")  # struct ifaddrmsg: family, prefix, flags, scope, interface
_ADDRESS, _LOCAL = 1, 2
_LINK = 253  # the scope of addresses that are unique on one network only
LOOPBACK = ("127.0.0.1", "::1")
"""Addresses from which every host reaches itself."""
MOST = 256


def addresses() -> List[str]:
    """Return the addresses of all interfaces but link-local ones; [] if unknown."""
    found = set(LOOPBACK)
    try:
        for message in netlink.dump(_NETLINK_ROUTE, _GET_ADDRESS, _ABOUT.pack(socket.AF_UNSPEC, 0, 0, 0, 0)):
            address = _address(message)
            if address and not address.startswith("127."):
                found.add(address)
    except OSError:
        return []
    return sorted(found)[:MOST]


def _address(message: bytes) -> str:
    """Return the address in a message of the kernel, "" for one of no use to us."""
    family, _, _, scope, _ = _ABOUT.unpack_from(message)
    if scope == _LINK or family not in (socket.AF_INET, socket.AF_INET6):
        return ""
    known = dict(netlink.attributes(message[_ABOUT.size :]))
    packed = known.get(_LOCAL) or known.get(_ADDRESS)  # with a peer, _ADDRESS is the other end's
    return socket.inet_ntop(family, packed) if packed else ""
