"""Find which process listens on which TCP port of this machine.

The kernel is asked for listening sockets only (sock_diag(7)). The tables in /proc serve as a fallback: to write them,
the kernel walks its whole table of connections, which takes milliseconds however few sockets listen.

Standard library only, Python >= 3.8: this module runs on hosts.
"""

from __future__ import annotations

import json
import os
import re
import socket
import struct

from tflaunch_worker import linux

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterator

_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_REQUEST_DUMP = 0x301  # NLM_F_REQUEST | NLM_F_DUMP
_ERROR, _DONE = 2, 3
_LISTEN = 10  # TCP_LISTEN in the kernel's numbering of states
_HEADER = struct.Struct("=IHHII")  # struct nlmsghdr: length, type, flags, sequence, sender
_QUESTION = struct.Struct("=BBBxI48x")  # struct inet_diag_req_v2: family, protocol, extensions, states, any socket
_ANSWER = struct.Struct("=4x2s62xI")  # struct inet_diag_msg: the port in network order, ..., the inode
_RECEIVE = 64 * 1024
_LONGEST_COMMAND = 120  # characters
_RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,200}")
_PATIENCE = 1.0  # seconds; the answer arrives at once or never


def ports() -> set[int]:
    """Return the TCP ports on which any process of this machine listens."""
    return {port for port, _ in _all()}


def is_listening(port: int, session: int) -> bool:
    """Return whether a process of a session listens on a port."""
    links = _links(port)
    names = [name for name in os.listdir("/proc") if name.isdigit() and linux.session_of(int(name)) == session]
    return any(_holds_any(name, links) for name in names)


def owner(port: int) -> str | None:
    """Return ``"pid 12 (python train.py)"`` for a port's process, with its run if tflaunch started it.

    That is the process listening on the port, or else a task of this user for which the port is held; None if unknown.
    """
    links = _links(port)
    pids = [name for name in os.listdir("/proc") if name.isdigit()]
    pid = next((name for name in pids if links and _holds_any(name, links)), None)
    if pid is None and not links:
        pid = next((name for name in pids if _is_held_for(name, port)), None)
    if pid is None:
        return None
    run = _variables(pid).get("TFLAUNCH_RUN", "")
    known = f"run {run}, " if _RUN.fullmatch(run) else ""
    remedy = f", which `tflaunch down {run}` ends" if known else ""
    return f"{known}pid {pid} ({_command(pid)}){remedy}"


def _command(pid: str) -> str:
    """Return the command line of a process on one line, without control characters."""
    text = (linux.read(f"/proc/{pid}/cmdline") or "").replace("\0", " ")
    words = "".join(sign if sign.isprintable() else " " for sign in text).split()
    return " ".join(words)[:_LONGEST_COMMAND] or "unknown command"


def _variables(pid: str) -> dict[str, str]:
    """Return the environment that a process was started with; empty for another user's process."""
    try:
        if os.stat(f"/proc/{pid}").st_uid != os.geteuid():
            return {}
    except OSError:
        return {}
    entries = (entry.decode("utf-8", "replace").partition("=") for entry in linux.environment_of(int(pid)))
    return {name: value for name, equals, value in entries if equals}


def _is_held_for(pid: str, port: int) -> bool:
    """Return whether a process is a task whose TF_CONFIG assigns it a port, even if it is not listening."""
    variables = _variables(pid)
    if "TFLAUNCH_RUN" not in variables or f':{port}"' not in variables.get("TF_CONFIG", ""):
        return False
    try:
        config = json.loads(variables["TF_CONFIG"])
        address = config["cluster"][config["task"]["type"]][config["task"]["index"]]
    except (ValueError, LookupError, TypeError, RecursionError):
        return False  # not one of our tasks
    return str(address).rpartition(":")[2] == str(port)


def _links(port: int) -> set[str]:
    """Return the /proc link targets of descriptors of the sockets that listen on a port."""
    return {f"socket:[{inode}]" for listening, inode in _all() if listening == port}


def _holds_any(pid: str, links: set[str]) -> bool:
    try:
        descriptors = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return False  # another user's process, or an exited one
    for descriptor in descriptors:
        try:
            if os.readlink(f"/proc/{pid}/fd/{descriptor}") in links:
                return True
        except OSError:
            continue
    return False


def _all() -> list[tuple[int, int]]:
    """Return (port, inode) of every listening TCP socket."""
    try:
        return [*from_kernel(socket.AF_INET), *from_kernel(socket.AF_INET6)]
    except (OSError, AttributeError):  # AttributeError: this is not Linux
        return list(from_tables())


def from_kernel(family: int) -> Iterator[tuple[int, int]]:
    """Yield (port, inode) from sock_diag; raises OSError if the kernel or its permissions do not allow it."""
    question = _QUESTION.pack(family, socket.IPPROTO_TCP, 0, 1 << _LISTEN)
    header = _HEADER.pack(_HEADER.size + len(question), _SOCK_DIAG_BY_FAMILY, _REQUEST_DUMP, 0, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as kernel:
        kernel.settimeout(_PATIENCE)
        kernel.send(header + question)
        while True:
            data = kernel.recv(_RECEIVE)
            start = 0
            while start < len(data):
                length, kind, _, _, _ = _HEADER.unpack_from(data, start)
                if kind == _DONE:
                    return
                if kind == _ERROR:
                    raise OSError("the kernel has no sock_diag for TCP")
                port, inode = _ANSWER.unpack_from(data, start + _HEADER.size)
                yield int.from_bytes(port, "big"), inode
                start += (length + 3) & ~3


def from_tables() -> Iterator[tuple[int, int]]:
    """Yield port and inode of each TCP listener in the kernel's tables of text, which every kernel has."""
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in (linux.read(table) or "").splitlines()[1:]:
            words = line.split()
            if len(words) > 9 and int(words[3], 16) == _LISTEN:
                yield int(words[1].rpartition(":")[2], 16), int(words[9])
