"""Measure what a process has used so far: CPU time, time in which its threads waited for a CPU, connections.

Standard library only, Python >= 3.8: this module runs on hosts.
"""

from __future__ import annotations

import os
import socket
import struct
import time

from tflaunch_worker import linux, netlink, sock_diag

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict

    Connections = Dict[str, Dict[str, Any]]
    """The connections of a machine, by ``socket:[INODE]``."""

_MOST_CONNECTIONS = 64  # of a process, those with the most traffic
_TICKS = os.sysconf("SC_CLK_TCK")
_CPU_CLOCK = 2  # CPUCLOCK_SCHED, of the process whose complement is in the upper bits: see clock_getcpuclockid(3)
_SCHEDSTAT = 200  # bytes of a line
_ANSWER = struct.Struct("=B3x2s2s16s16s28xI")  # struct inet_diag_msg: family, ports, addresses, inode
_COUNTERS = struct.Struct("=120xQQ32xQQ")
"""struct tcp_info: bytes acknowledged and received; busy time, and the part in which the peer took no more, in µs."""


def use_of(pid: int, connections: Connections) -> dict[str, Any]:
    """Return what a process has used since it began.

    ``cpu_seconds`` is its CPU time; ``cpu_wait`` how many seconds its living threads waited for a CPU, in sum, None if
    the kernel does not tell; ``connections`` those of `connections_here` that it holds.
    """
    sockets = set()
    try:
        for name in os.listdir(f"/proc/{pid}/fd"):
            try:
                sockets.add(os.readlink(f"/proc/{pid}/fd/{name}"))
            except OSError:
                continue
    except OSError:
        pass  # it is gone
    held = sorted((connections[name] for name in sockets & connections.keys()), key=_traffic)
    return {
        "cpu_seconds": _cpu_seconds(pid),
        "cpu_wait": _cpu_wait(pid),
        "connections": held[-_MOST_CONNECTIONS:],
    }


def _cpu_seconds(pid: int) -> float:
    try:
        return time.clock_gettime((~pid << 3) | _CPU_CLOCK)
    except OSError:
        return 0.0  # it is gone


def _cpu_wait(pid: int) -> float | None:
    found = None
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return None
    for thread in threads:
        try:
            file = os.open(f"/proc/{pid}/task/{thread}/schedstat", os.O_RDONLY)  # a file object takes twice as long
        except OSError:
            continue  # it has ended
        words = os.read(file, _SCHEDSTAT).split()
        os.close(file)
        if len(words) > 1:
            found = (found or 0.0) + int(words[1]) / 1e9
    return found


def _traffic(connection: dict[str, Any]) -> int:
    return int(connection["sent"] + connection["received"])


def busy_seconds() -> float:
    """Return for how long the CPUs of this machine have worked, for any program, in sum."""
    words = (linux.read("/proc/stat") or "cpu").partition("\n")[0].split()[1:9]
    times = [int(word) for word in words]
    return (sum(times) - sum(times[3:5])) / _TICKS  # without idle and iowait


def connections_here() -> Connections:
    """Return the established TCP connections of this network namespace, none if the kernel does not tell.

    Each has ``local``, ``peer``, ``sent`` and ``received`` (bytes), and ``sending``: for how many seconds it has
    waited for the network, that is, for acknowledgements of what the peer had room for.
    """
    found: Connections = {}
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            for message in sock_diag.sockets(family, sock_diag.ESTABLISHED, with_info=True):
                _add(found, message)
        except (OSError, AttributeError):  # AttributeError: this is not Linux
            break
    return found


def _add(found: Connections, message: bytes) -> None:
    family, port, peer_port, address, peer, inode = _ANSWER.unpack_from(message)
    counters = dict(netlink.attributes(message[_ANSWER.size :])).get(sock_diag.INFO, b"")
    if len(counters) >= _COUNTERS.size:  # older kernels tell less
        sent, received, busy, refused = _COUNTERS.unpack_from(counters)
        found[f"socket:[{inode}]"] = {
            "local": _address(family, address, port),
            "peer": _address(family, peer, peer_port),
            "sent": sent,
            "received": received,
            "sending": max(busy - refused, 0) / 1e6,
        }


def _address(family: int, packed: bytes, port: bytes) -> str:
    number = int.from_bytes(port, "big")
    if family == socket.AF_INET6 and packed[:12] == b"\0" * 10 + b"\xff\xff":
        family, packed = socket.AF_INET, packed[12:]
    shown = socket.inet_ntop(family, packed[:4] if family == socket.AF_INET else packed)
    return f"[{shown}]:{number}" if family == socket.AF_INET6 else f"{shown}:{number}"
