"""Find which process listens on which TCP port of this machine.

The kernel is asked for listening sockets only (sock_diag(7)). The tables in /proc serve as a fallback: to write them,
the kernel walks its whole table of connections, which takes milliseconds however few sockets listen.
"""

from __future__ import annotations

import json
import os
import re
import socket
import struct
from collections import namedtuple
from contextlib import suppress
from typing import Collection, Iterator

from tflaunch_worker import procfs
from tflaunch_worker.agent.network import netlink
from tflaunch_worker.readable import printable

_PROTOCOL = 4  # NETLINK_SOCK_DIAG
_BY_FAMILY = 20  # SOCK_DIAG_BY_FAMILY, the type of a question
_LISTENING = 10  # TCP_LISTEN in the kernel's numbering of states
_QUESTION = struct.Struct("=BB2xI48x")  # struct inet_diag_req_v2: family, protocol, states
_ANSWER = struct.Struct("=B3x2s2x16s44xI")  # struct inet_diag_msg: family, port in network order, address, inode
_LONGEST_COMMAND = 120  # characters
_RUN = r"[A-Za-z0-9][A-Za-z0-9._-]{0,200}"


Listener = namedtuple("Listener", ["port", "inode", "address"])
"""A socket that listens: its port, its inode and the address that it is bound to."""


def listeners(port: int, without: Collection[int] = ()) -> list[Listener]:
    """Return the listening sockets on a port, except those with inodes ``without``."""
    return [found for found in _all() if found.port == port and found.inode not in without]


def ports(without: Collection[int] = ()) -> set[int]:
    """Return the TCP ports of listening sockets, except those with inodes ``without``."""
    return {found.port for found in _all() if found.inode not in without}


def ports_beside(pid: int) -> set[int]:
    """Return the TCP ports on which any process listens in the network of a process."""
    return {found.port for found in from_tables(f"/proc/{pid}/net")}


def ports_of(pid: int) -> set[int]:
    """Return the TCP ports on which a process itself listens.

    A fork of ours has our sockets, too, until it executes its program.
    """
    own = links_of(str(pid)) - links_of("self")
    return {found.port for found in _all() if _link(found) in own}


def owner(port: int) -> str | None:
    """Return ``"pid 12 (python a.py)"`` for a port's process, with its run if ours.

    That is a task of this user for which the port is held, where its agent may listen, too, or else the process that
    listens on the port; None if unknown.
    """
    links = {_link(found) for found in listeners(port)}
    pids = [name for name in os.listdir("/proc") if name.isdigit()]
    pid = next((name for name in pids if _is_held_for(name, port)), None)
    if pid is None and links:
        pid = next((name for name in pids if not links.isdisjoint(links_of(name))), None)
    if pid is None:
        return None
    run = _variables(pid).get("TFLAUNCH_RUN", "")
    is_ours = re.fullmatch(_RUN, run) is not None
    known, remedy = (f"run {run}, ", f", which `tflaunch down {run}` ends") if is_ours else ("", "")
    command = printable(procfs.command_of(int(pid)), _LONGEST_COMMAND) or "unknown command"
    return f"{known}pid {pid} ({command}){remedy}"


def _variables(pid: str) -> dict[str, str]:
    """Return the environment at a process's start; empty for another user's process."""
    try:
        if os.stat(f"/proc/{pid}").st_uid != os.geteuid():
            return {}
    except OSError:
        return {}
    entries = (entry.decode("utf-8", "replace").partition("=") for entry in procfs.environment_of(int(pid)))
    return {name: value for name, equals, value in entries if equals}


def _is_held_for(pid: str, port: int) -> bool:
    """Return whether a process is a task with this port in TF_CONFIG, even unopened."""
    variables = _variables(pid)
    if "TFLAUNCH_RUN" not in variables or f':{port}"' not in variables.get("TF_CONFIG", ""):
        return False
    try:
        config = json.loads(variables["TF_CONFIG"])
        address = config["cluster"][config["task"]["type"]][config["task"]["index"]]
    except (ValueError, LookupError, TypeError, RecursionError):
        return False  # not one of our tasks
    return str(address).rpartition(":")[2] == str(port)


def _link(found: Listener) -> str:
    """Return the /proc link target of a socket."""
    return f"socket:[{found.inode}]"


def links_of(pid: str) -> set[str]:
    """Return the /proc link targets of what a process has open."""
    links = set()
    with suppress(OSError):  # another user's process, or an exited one
        for descriptor in os.listdir(f"/proc/{pid}/fd"):
            with suppress(FileNotFoundError):  # it has just been closed
                links.add(os.readlink(f"/proc/{pid}/fd/{descriptor}"))
    return links


def _all() -> list[Listener]:
    try:
        return [*from_kernel(socket.AF_INET), *from_kernel(socket.AF_INET6)]
    except OSError:
        return list(from_tables())


def from_kernel(family: int) -> Iterator[Listener]:
    """Yield listeners from sock_diag; raise OSError if the kernel refuses."""
    question = _QUESTION.pack(family, socket.IPPROTO_TCP, 1 << _LISTENING)
    for message in netlink.dump(_PROTOCOL, _BY_FAMILY, question):
        found, port, address, inode = _ANSWER.unpack_from(message)
        packed = address[:4] if found == socket.AF_INET else address
        yield Listener(int.from_bytes(port, "big"), inode, socket.inet_ntop(found, packed))


def from_tables(directory: str = "/proc/net") -> Iterator[Listener]:
    """Yield the TCP listeners in the kernel's tables of text, which every kernel has."""
    for table, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for line in (procfs.read(f"{directory}/{table}") or "").splitlines()[1:]:
            words = line.split()
            if len(words) > 9 and int(words[3], 16) == _LISTENING:
                address, port = read_address(words[1], family)
                yield Listener(port, int(words[9]), address)


def read_address(text: str, family: int) -> tuple[str, int]:
    """Return an address and a port as the kernel's tables write them."""
    address, _, port = text.rpartition(":")
    numbers = [int(address[place : place + 8], 16) for place in range(0, len(address), 8)]
    return socket.inet_ntop(family, struct.pack(f"={len(numbers)}I", *numbers)), int(port, 16)
