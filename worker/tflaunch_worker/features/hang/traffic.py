"""Count the bytes that processes have read, written, sent and received so far."""

from __future__ import annotations

import os
import socket
import struct

from tflaunch_worker import procfs

_SOCK_DIAG, _BY_FAMILY, _DUMP = 4, 20, 0x301  # of linux/netlink.h and linux/sock_diag.h
_ESTABLISHED, _INFO = 1, 2  # of linux/tcp_states.h and linux/inet_diag.h
_HEADER = struct.Struct("=LHHLL")
_REQUEST = struct.Struct("=BBBxL48x")
_INODE_AT, _ATTRIBUTES_AT = 68, 72  # in struct inet_diag_msg
_ACKED_AT = 120  # bytes acknowledged, then bytes received, in struct tcp_info
_PATIENCE = 1.0  # seconds; the kernel answers at once
_MOST = 1 << 16  # bytes of one answer
_PAGE = os.sysconf("SC_PAGESIZE")


class Traffic:
    """The traffic of this host's processes at one moment."""

    def __init__(self) -> None:
        self._namespace = _namespace_of("self")
        self._sockets = {**_read_sockets(socket.AF_INET), **_read_sockets(socket.AF_INET6)}

    def of(self, pid: int) -> int:
        """Return the bytes that a process has moved, with those of its open connections and mapped files.

        In another network namespace, connections cannot be told apart: it is the traffic of all that are there.
        """
        words = (procfs.read(f"/proc/{pid}/io") or "").split()
        total = sum(int(words[words.index(name) + 1]) for name in ("rchar:", "wchar:") if name in words)
        total += _PAGE * _major_faults(pid)
        if _namespace_of(pid) != self._namespace:
            return total + _octets(pid)
        return total + sum(self._sockets.get(inode, 0) for inode in sockets_of(pid))


def _major_faults(pid: int) -> int:
    """Return how often a process has waited for a page of a mapped file, or of swapped memory."""
    words = (procfs.read(f"/proc/{pid}/stat") or "").rpartition(")")[2].split()
    return int(words[9]) if words else 0


def _namespace_of(pid: int | str) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/net")
    except OSError:
        return ""  # it is gone


def sockets_of(pid: int) -> set[int]:
    """Return the inodes of a process's sockets."""
    inodes = set()
    try:
        for name in os.listdir(f"/proc/{pid}/fd"):
            try:
                kind, _, inode = os.readlink(f"/proc/{pid}/fd/{name}").partition(":[")
            except OSError:
                continue
            if kind == "socket":
                inodes.add(int(inode[:-1]))
    except OSError:
        pass  # it is gone, or another user's
    return inodes


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
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _SOCK_DIAG) as kernel:
            kernel.settimeout(_PATIENCE)
            request = _REQUEST.pack(family, socket.IPPROTO_TCP, 1 << (_INFO - 1), 1 << _ESTABLISHED)
            kernel.send(_HEADER.pack(_HEADER.size + len(request), _BY_FAMILY, _DUMP, 1, 0) + request)
            while _take(kernel.recv(_MOST), moved):
                pass
    except (OSError, struct.error):  # some sandboxes have no such sockets
        pass
    return moved


def _take(answer: bytes, moved: dict[int, int]) -> bool:
    """Add the connections of one answer of the kernel; return whether more follow."""
    while len(answer) >= _HEADER.size:
        length, kind = _HEADER.unpack_from(answer)[:2]
        if kind != _BY_FAMILY:
            return False  # the end, or an error
        message, answer = answer[_HEADER.size : length], answer[(length + 3) & ~3 :]
        inode, at = struct.unpack_from("=L", message, _INODE_AT)[0], _ATTRIBUTES_AT
        while at + 4 <= len(message):
            size, name = struct.unpack_from("=HH", message, at)
            if name == _INFO and size >= 4 + _ACKED_AT + 16:
                moved[inode] = sum(struct.unpack_from("=QQ", message, at + 4 + _ACKED_AT))
            at += max((size + 3) & ~3, 4)
    return True
