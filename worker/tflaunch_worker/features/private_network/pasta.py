"""The way out of a private network: the program pasta, where it is installed.

Pasta gives the network an interface, and forwards to the outside what tasks send there; it lets no connection in. A
process of ours in the network, the keeper, shows pasta the namespaces, and kills it when the agent ends: pasta changes
its privileges, after which the kernel no longer signals it when its parent dies.
"""

from __future__ import annotations

import os
import shutil
import signal
import time
from typing import Iterable, NoReturn

from tflaunch_worker import linux, process_state, procfs

PATIENCE = 2.0
"""Seconds in which pasta has to connect a network; it takes about 0.01."""
_INTERVAL = 0.002  # seconds
_NOTHING_COMES_IN = ("--tcp-ports=none", "--udp-ports=none")
_NO_LOOPBACK_OF_THE_HOST = ("--tcp-ns=none", "--udp-ns=none", "--no-map-gw")
_INTERFACE = "--ns-ifname=pasta"
_ADDRESSES = ("--address=169.254.90.2", "--netmask=30", "--gateway=169.254.90.1")
"""Link-local: with the host's own address, the network could not reach services of the host."""
_PR_SET_DUMPABLE = 4
_CAPABILITIES = 0x20080522  # _LINUX_CAPABILITY_VERSION_3
_OWN_SIGNALS = {signal.SIGTERM, signal.SIGCHLD}


def connect(namespaces: Iterable[int]) -> str:
    """Connect a network to the world while this process lives; return why not, or "".

    The namespaces are entered in this order; the last is that of the network.
    """
    program = shutil.which("pasta")
    if program is None:
        return "pasta is not installed there (package passt)"
    ours, theirs = os.pipe()
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        _be_keeper(program, list(namespaces), theirs, parent)
    os.close(theirs)
    with os.fdopen(ours, "rb") as answer:
        is_connected = answer.read(1) == b"1"
    if is_connected:
        return ""
    os.waitpid(pid, 0)  # no limit: it has closed its end of the pipe
    return "pasta makes no route there (it needs /dev/net/tun and a default route for IPv4)"


def _be_keeper(program: str, namespaces: list[int], answer: int, parent: int) -> NoReturn:
    try:
        signal.set_wakeup_fd(-1)
        process_state.close_all_but([*namespaces, answer])
        signal.pthread_sigmask(signal.SIG_BLOCK, _OWN_SIGNALS)
        keeper = os.getpid()
        entered, enter = os.pipe()
        pid = os.fork()
        if pid == 0:
            _be_pasta(program, keeper, len(namespaces) > 1, entered, enter)
        for namespace in namespaces:
            linux.call_c("setns", namespace, 0)
        _drop_capabilities()
        linux.die_with_parent(signal.SIGTERM)
        os.close(enter)
        try:
            if os.getppid() == parent and _is_connected(pid):
                os.write(answer, b"1")
                os.close(answer)
                signal.sigwait(_OWN_SIGNALS)  # no limit: it keeps the network as long as its parent lives
        finally:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)  # no limit: it gets KILL
    except BaseException as error:
        os.write(2, f"{error!r}\n".encode("utf-8", "replace"))
    finally:
        os._exit(0)


def _is_connected(pid: int) -> bool:
    """Wait for pasta's default route in this network; return False if it never comes."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        routes = (procfs.read("/proc/self/net/route") or "").splitlines()[1:]
        if any(route.split()[1] == "00000000" for route in routes):
            return True
        if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            return False
        time.sleep(_INTERVAL)
    return False


def _be_pasta(program: str, keeper: int, has_user_namespace: bool, entered: int, enter: int) -> NoReturn:
    """Become a silent pasta when the keeper is in the network and ``enter`` is closed."""
    try:
        linux.die_with_parent(signal.SIGKILL)  # until it changes its privileges
        os.close(enter)
        os.read(entered, 1)
        nothing = os.open(os.devnull, os.O_RDWR)
        for descriptor in range(3):
            os.dup2(nothing, descriptor)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _OWN_SIGNALS)
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # pasta of 2023 does not start where Python has it ignored
        as_root = ["--netns-only", "--runas=0:0"]  # another user could not open the namespace
        user = [f"--userns=/proc/{keeper}/ns/user"] if has_user_namespace else as_root
        network = ["--config-net", _INTERFACE, *_NOTHING_COMES_IN, *_NO_LOOPBACK_OF_THE_HOST, *_ADDRESSES]
        os.execv(program, [program, "--foreground", "--quiet", *network, *user, f"--netns=/proc/{keeper}/ns/net"])
    finally:
        os._exit(1)


def _drop_capabilities() -> None:
    """Drop all capabilities, to open our /proc to this user's processes without any."""
    import ctypes  # costs milliseconds

    header, none = (ctypes.c_uint32 * 2)(_CAPABILITIES, 0), (ctypes.c_uint32 * 6)()
    linux.call_c("capset", header, none)
    # A process that has entered a user namespace is not.
    linux.call_c("prctl", _PR_SET_DUMPABLE, 1, 0, 0, 0)
