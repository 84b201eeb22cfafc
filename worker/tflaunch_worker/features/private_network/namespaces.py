"""A network for this host's tasks that no other process of the host can reach.

It is a network namespace with a loopback interface and nothing else. Root makes it directly. An ordinary user needs a
user namespace around it, in which the user keeps its id, so that tasks create files as usual. The namespaces live as
long as their descriptors here; tasks join them before their programs are executed (`spawn`). The only way out is
`pasta`, on hosts where it is installed.
"""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import struct
from typing import NoReturn

from tflaunch_worker import linux, procfs
from tflaunch_worker.features.private_network import pasta
from tflaunch_worker.socket_messages import receive_message, send_message

_LOOPBACK = b"lo"
_NEW_USER, _NEW_NETWORK = 0x10000000, 0x40000000  # CLONE_NEWUSER, CLONE_NEWNET
_MADE_WITHIN = 10.0  # seconds
_GET_FLAGS, _SET_FLAGS, _IS_UP = 0x8913, 0x8914, 0x1  # SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP
_FLAGS = struct.Struct("16sH22x")  # struct ifreq: name and flags
_FORBIDDING = (
    ("user/max_user_namespaces", "0"),
    ("kernel/unprivileged_userns_clone", "0"),
    ("kernel/apparmor_restrict_unprivileged_userns", "1"),
)
"""Settings below /proc/sys with the values by which a host forbids what an ordinary user needs."""


def open_network() -> tuple[tuple[int, ...], str]:
    """Make a network, with an interface to the world where pasta can make one.

    Returns descriptors of its namespaces, and why it has no such interface, or "". Raises `OSError` if this host does
    not allow it.
    """
    namespaces = tuple(_ask_fork())
    return namespaces, pasta.connect(namespaces)


def _ask_fork() -> list[int]:
    """Have a fork make namespaces, as this process keeps its own; return descriptors."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        pid = os.fork()
        if pid == 0:
            _make_and_exit(theirs)
        theirs.close()
        ours.settimeout(_MADE_WITHIN)  # the agent's loop waits for it
        try:
            message, descriptors = receive_message(ours)
        except (EOFError, OSError):
            message, descriptors = {"reason": "the process that makes it has died, or does not answer"}, []
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)  # no limit: it exits, or got KILL
    if "reason" in message:
        raise OSError(str(message["reason"]))
    return descriptors


def _make_and_exit(channel: socket.socket) -> NoReturn:
    try:
        signal.set_wakeup_fd(-1)
        _make_namespaces(channel)
    except OSError as error:
        send_message(channel, {"reason": _reason(error)})
    except BaseException as error:
        os.write(2, f"{error!r}\n".encode("utf-8", "replace"))
    finally:
        os._exit(0)


def _make_namespaces(channel: socket.socket) -> None:
    """Move to new namespaces, and send their descriptors."""
    kinds = ["net"]
    try:
        linux.call_c("unshare", _NEW_NETWORK)
    except OSError:
        user, group = os.geteuid(), os.getegid()
        linux.call_c("unshare", _NEW_USER | _NEW_NETWORK)
        for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
                file.write(text)
        kinds.insert(0, "user")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        name, flags = _FLAGS.unpack(fcntl.ioctl(control, _GET_FLAGS, _FLAGS.pack(_LOOPBACK, 0)))
        fcntl.ioctl(control, _SET_FLAGS, _FLAGS.pack(name, flags | _IS_UP))
    send_message(channel, {}, [os.open(f"/proc/self/ns/{kind}", os.O_RDONLY) for kind in kinds])


def _reason(error: OSError) -> str:
    """Return why this user cannot make the namespaces."""
    for setting, value in _FORBIDDING:
        if (procfs.read(f"/proc/sys/{setting}") or "").strip() == value:
            return f"this host does not let users make namespaces: {setting.replace('/', '.')} is {value}"
    return f"this host, or the container that it is, does not let users make namespaces: {error.strerror}"
