"""Count the bytes that processes have read, written, sent and received so far."""

from __future__ import annotations

import os
import socket
import struct
from contextlib import suppress

from tflaunch_worker import procfs
from tflaunch_worker.agent.network import listening_sockets, netlink

_SOCK_DIAG, _BY_FAMILY = 4, 20  # of linux/netlink.h and linux/sock_diag.h
_ESTABLISHED, _INFO = 1, 2  # of linux/tcp_states.h and linux/inet_diag.h
_REQUEST = struct.Struct("=BBBxL48x")
_INODE_AT, _ATTRIBUTES_AT = 68, 72  # in struct inet_diag_msg
_ACKED_AT = 120  # bytes acknowledged, then bytes received, in struct tcp_info
_SOCKET = "socket:["
_PAGE = os.sysconf("SC_PAGESIZE")


class Traffic:
    """The traffic of this host's processes at one moment."""

    def __init__(self) -> None:
        self._namespace = namespace_of("self")
        self._sockets = {**_read_sockets(socket.AF_INET), **_read_sockets(socket.AF_INET6)}

    def of(self, pid: int) -> int:
        """Return the bytes that a process moved, also by connections and mapped files.

        In another network namespace, connections cannot be told apart: it is the traffic of all that are there.
        """
        words = (procfs.read(f"/proc/{pid}/io") or "").split()
        total = sum(int(words[words.index(name) + 1]) for name in ("rchar:", "wchar:") if name in words)
        total += _PAGE * _major_faults(pid)
        if namespace_of(pid) != self._namespace:
            return total + _octets(pid)
        return total + sum(self._sockets.get(inode, 0) for inode in sockets_of(pid))


def _major_faults(pid: int) -> int:
    """Return how often a process waited for a page of mapped or swapped memory."""
    words = (procfs.read(f"/proc/{pid}/stat") or "").rpartition(")")[2].split()
    return int(words[9]) if words else 0


def namespace_of(pid: int | str) -> str:
    """Return the name of a process's network namespace; "" if the process is gone."""
    try:
        return os.readlink(f"/proc/{pid}/ns/net")
    except OSError:
        return ""


def sockets_of(pid: int) -> set[int]:
    """Return the inodes of a process's sockets."""
    links = listening_sockets.links_of(str(pid))
    return {int(link[len(_SOCKET) : -1]) for link in links if link.startswith(_SOCKET)}


def _octets(pid: int) -> int:
    """Return the bytes received and sent in the network namespace of a process."""
    names: list[str] = []
    values: list[str] = []
    for line in (procfs.read(f"/proc/{pid}/net/netstat") or "").splitlines():
        if line.startswith("IpExt:"):
            names, values = values, line.split()
    known = dict(zip(names, values))  # noqa: B905 (new in Python 3.10)
    return int(known.get("InOctets", 0)) + int(known.get("OutOctets", 0))


def _read_sockets(family: int) -> dict[int, int]:
    """Return the bytes moved over each established TCP connection by its inode."""
    moved: dict[int, int] = {}
    question = _REQUEST.pack(family, socket.IPPROTO_TCP, 1 << (_INFO - 1), 1 << _ESTABLISHED)
    with suppress(OSError, struct.error):  # some sandboxes have no such sockets
        for message in netlink.dump(_SOCK_DIAG, _BY_FAMILY, question):
            (inode,) = struct.unpack_from("=L", message, _INODE_AT)
            info = dict(netlink.attributes(message[_ATTRIBUTES_AT:])).get(_INFO, b"")
            if len(info) >= _ACKED_AT + 16:
                moved[inode] = sum(struct.unpack_from("=QQ", info, _ACKED_AT))
    return moved
