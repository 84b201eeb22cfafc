"""Keep connections from outside the cluster away from the ports of tasks.

TensorFlow's server runs any graph that it is sent. So the socket that holds a task's port listens, too, while the task
runs, in the SO_REUSEPORT group that TensorFlow joins, with a classic BPF program that the kernel asks which socket of
the group gets a new connection: TensorFlow, if the source belongs to the cluster, otherwise the holder, which resets
it. The program sees only packets that open a connection, and an ordinary user may attach it (Linux 4.6).

Until the task listens, the holder is alone, and a second program drops what comes from the cluster, as if the packet
were lost: peers try again after a second, TensorFlow as after a refusal. If the holder accepted them, a program would
take its peer for ready. New kernels allow that program on TCP sockets with CAP_NET_ADMIN only (commit 5d39580f68e6 of
2026, also in 6.18.44). For other users, the kernel drops all packets at the holder until the task listens, because of
their TTL (IP_MINTTL).
"""

from __future__ import annotations

import array
import os
import socket
import struct
from typing import Callable, Collection, Dict, Iterable, List, Sequence, Tuple

from tflaunch_worker.agent.network.listening_sockets import Listener
from tflaunch_worker.event_loop import Loop

Instruction = Tuple[int, int, int, int]
"""Code, jump if true, jump if false, operand: struct sock_filter."""

_SO_ATTACH_FILTER, _SO_ATTACH_REUSEPORT_CBPF = 26, 51
_IP_MINTTL, _IPV6_MINHOPCOUNT = 21, 73
_HIGHEST_TTL = 255  # with which only routing protocols send packets; others use 64 or 128
_MOST_INSTRUCTIONS = 4096  # BPF_MAXINSNS
_LOAD_WORD, _LOAD_BYTE, _SHIFT_RIGHT, _RETURN = 0x20, 0x30, 0x74, 0x06
_JUMP, _IF_EQUAL, _IF_GREATER, _IF_GREATER_OR_EQUAL = 0x05, 0x15, 0x25, 0x35
_NETWORK_HEADER = 0xFFF00000  # SKF_NET_OFF, as an unsigned number
_SOURCE_IPV4, _SOURCE_IPV6 = _NETWORK_HEADER + 12, _NETWORK_HEADER + 8
_HOLDER: Instruction = (_RETURN, 0, 0, 0)
_TASK: Instruction = (_RETURN, 0, 0, 1)  # of a group without a task the kernel then takes the holder
_WHOLE_PACKET = 0xFFFF
_FARTHEST = 255  # instructions that a conditional jump can skip
_BLOCK = 100  # ranges of addresses that share a return, each of up to two instructions

_BACKLOG = 128
_AT_ONCE = 64  # connections reset before the agent serves something else
_MOST_SOURCES = 16
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: close() resets the connection
_MAPPED = "::ffff:"


class Fence:
    """Guard of tasks' ports: only connections from admitted addresses reach them."""

    def __init__(self, loop: Loop) -> None:
        self.counts: Dict[str, int] = {}  # of refused connections, by task
        self._loop = loop
        self.tell: Callable[[str, str], None] = lambda *_: None
        """Called at the first refusal of each of the first addresses."""
        self._holders: Dict[str, socket.socket] = {}
        self._program: List[Instruction] = []
        self._flaw = ""
        self._admitted: Collection[str] = ()
        self._refused: set[str] = set()

    def admit(self, addresses: Sequence[str]) -> str:
        """Admit connections from these addresses and from no others, to all guarded ports.

        Returns why that is not possible, or "": then no port is guarded any longer.
        """
        self._admitted = frozenset(addresses)
        # Compiled once for all tasks of the host; the kernel copies it for each socket.
        self._program = compile_program(addresses)
        self._flaw = "" if addresses else "the addresses of a host are not known"
        if len(self._program) > _MOST_INSTRUCTIONS:
            self._flaw = f"the {len(addresses)} addresses of the hosts are more than the kernel takes"
        try:
            # Dropping first: a peer that has just been admitted tries again, whereas one that is chosen too early
            # would be accepted by a holder that resets it.
            for holder in self._holders.values() if not self._flaw else ():
                _try_to_drop(holder, self._program)
                _choose(holder, self._program)
        except OSError as error:
            self._flaw = _reason(error)
        if self._flaw:
            for task in self.tasks:
                self.leave(task)
        return self._flaw

    def lacks(self, source: str) -> bool:
        """Return whether connections from this address are refused."""
        return bool(self._program) and source not in self._admitted

    @property
    def tasks(self) -> List[str]:
        """The tasks whose ports are guarded."""
        return list(self._holders)

    def guard(self, task: str, holder: socket.socket | None) -> str:
        """Guard a task's port before its start; has no effect before `admit`.

        ``holder``: the socket that is bound to the port; with None, the task has none. Returns why that is not
        possible, or "".
        """
        if not self._program or holder is None or self._flaw:
            return self._flaw
        try:
            holder.setblocking(False)
            _drop(holder, self._program)  # first: tasks on other hosts may try to connect already
            holder.listen(_BACKLOG)  # before `_choose`: listening again conflicts with connections in TIME_WAIT then
        except OSError as error:
            return _reason(error)
        # From here on `leave` cleans up, whatever fails.
        self._holders[task] = holder
        self._loop.watch(holder.fileno(), lambda: self._refuse(task, holder))
        try:
            _choose(holder, self._program)
        except OSError as error:
            self.leave(task)
            return _reason(error)
        return ""

    def note_opened(self, task: str) -> None:
        """Note that a task listens: connections from outside are reset and counted now."""
        if task in self._holders:
            try:
                _set_lowest_ttl(self._holders[task], 0)
            except OSError:
                pass  # a sandbox without this option has dropped nothing because of it

    def leave(self, task: str) -> None:
        """Guard a task's port no longer; has no effect if it is not guarded.

        Its holder stays bound but does not listen, so connections are refused as long as no task listens.
        """
        holder = self._holders.pop(task, None)
        if holder is not None:
            self._loop.forget(holder.fileno())
            # Not `close`: forks of ours may have inherited the socket, and as long as one holds it open, it would
            # listen, and take its part of the connections to the task.
            holder.shutdown(socket.SHUT_RDWR)

    def inodes(self) -> set[int]:
        """Return the inodes of the fence's own listening sockets."""
        return {os.fstat(holder.fileno()).st_ino for holder in self._holders.values()}

    def gap(self, task: str, listeners: Iterable[Listener]) -> str:
        """Return why connections can reach a task past the fence, or "" if they cannot.

        ``listeners``: the sockets that listen on its port, without the fence's.
        """
        if task not in self._holders:
            return ""
        # A socket bound to one address is in another SO_REUSEPORT group, which the program does not see.
        everywhere = self._holders[task].getsockname()[0]
        for listener in listeners:
            if listener.address != everywhere and not is_loopback(listener.address):
                return f"its program listens on {listener.address}, not on {everywhere}"
        return ""

    def _refuse(self, task: str, holder: socket.socket) -> None:
        for _ in range(_AT_ONCE):
            try:
                connection, address = holder.accept()
            except OSError:
                return  # none is left, or it has gone by itself
            # A reset, not an orderly end: that would leave the port in TIME_WAIT, and a peer would read the end of a
            # stream from what it takes for its server.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            connection.close()
            # Admitted peers come here, too, before the task listens, where the kernel cannot drop their packets.
            source = plain(address[0])
            if source not in self._admitted:
                self._note_refused(task, source)

    def _note_refused(self, task: str, source: str) -> None:
        self.counts[task] = self.counts.get(task, 0) + 1
        if source not in self._refused and len(self._refused) < _MOST_SOURCES:
            self._refused.add(source)
            self.tell(task, source)


def read_address(text: str) -> str:
    """Return an address as `plain` does; launcher and agents use no other reader.

    Raises:
        ValueError: it is none, or has a zone, which means something on one host only.
    """
    family = socket.AF_INET6 if ":" in text else socket.AF_INET
    try:
        return plain(socket.inet_ntop(family, socket.inet_pton(family, text)))
    except (OSError, ValueError):  # a lone surrogate or NUL is not an address, either
        raise ValueError(f"{text[:60]!r} is not an address") from None


def plain(address: str) -> str:
    """Return a socket's address without zone, and as IPv4 if it is mapped."""
    address = address.partition("%")[0]
    return address[len(_MAPPED) :] if address.startswith(_MAPPED) else address


def is_loopback(address: str) -> bool:
    """Return whether only this machine reaches an address."""
    return address == "::1" or plain(address).startswith("127.")


def why_unavailable() -> str:
    """Return why ports cannot be fenced on this host, or "" if they can."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as tried:
        try:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            _drop(tried, [_TASK])
            _choose(tried, [_TASK])
        except OSError as error:
            return _reason(error)
    return ""


def _reason(error: OSError) -> str:
    return f"the kernel does not allow it: {error.strerror}"


def _choose(holder: socket.socket, program: List[Instruction]) -> None:
    """Have the kernel choose sockets of the holder's group by a program."""
    _attach(holder, _SO_ATTACH_REUSEPORT_CBPF, program)


def _drop(holder: socket.socket, program: List[Instruction]) -> None:
    """Have the kernel drop a packet at the holder if the program chooses a task.

    Where this user may not do that, all packets are dropped until `Fence.note_opened`.
    """
    if not _try_to_drop(holder, program):
        _set_lowest_ttl(holder, _HIGHEST_TTL)


def _set_lowest_ttl(holder: socket.socket, lowest: int) -> None:
    """Have the kernel drop packets with a lower TTL."""
    holder.setsockopt(socket.IPPROTO_IP, _IP_MINTTL, lowest)
    if holder.family == socket.AF_INET6:  # its packets of IPv4 have the first limit
        holder.setsockopt(socket.IPPROTO_IPV6, _IPV6_MINHOPCOUNT, lowest)


def _try_to_drop(holder: socket.socket, program: List[Instruction]) -> bool:
    """Have the kernel drop packets meant for a task; return whether this user may."""
    dropping = [
        (_RETURN, 0, 0, _WHOLE_PACKET if result == 0 else 0) if code == _RETURN else (code, if_true, if_false, result)
        for code, if_true, if_false, result in program
    ]
    try:
        _attach(holder, _SO_ATTACH_FILTER, dropping)
    except PermissionError:
        return False
    return True


def _attach(holder: socket.socket, option: int, program: List[Instruction]) -> None:
    filters = array.array("B", b"".join(struct.pack("=HBBI", *instruction) for instruction in program))
    address, _ = filters.buffer_info()
    holder.setsockopt(socket.SOL_SOCKET, option, struct.pack("@HP", len(program), address))


def compile_program(addresses: Sequence[str]) -> List[Instruction]:
    """Return a BPF program of any size: 1 for packets from these addresses, else 0."""
    ipv4 = sorted({_words(socket.AF_INET, address)[0] for address in addresses if ":" not in address})
    ipv6 = sorted({_words(socket.AF_INET6, address) for address in addresses if ":" in address})
    of_ipv6 = _match_words(ipv6, 0)
    return [
        (_LOAD_BYTE, 0, 0, _NETWORK_HEADER),
        (_SHIFT_RIGHT, 0, 0, 4),
        (_IF_EQUAL, 0, 1, 4),
        (_JUMP, 0, 0, len(of_ipv6)),
        *of_ipv6,
        (_LOAD_WORD, 0, 0, _SOURCE_IPV4),
        *_match_any(ipv4),
        _HOLDER,
    ]


def _words(family: int, address: str) -> Tuple[int, ...]:
    packed = socket.inet_pton(family, address)
    return struct.unpack(f"!{len(packed) // 4}I", packed)


def _match_any(values: Sequence[int]) -> List[Instruction]:
    """Return code that returns 1 if the word is among the sorted values, or goes on."""
    ranges: List[Tuple[int, int]] = []
    for value in values:
        if ranges and value == ranges[-1][1] + 1:
            ranges[-1] = ranges[-1][0], value
        else:
            ranges.append((value, value))
    if len(values) == 1:
        return [(_IF_EQUAL, 0, 1, values[0]), _TASK]
    program: List[Instruction] = []
    for start in range(0, len(ranges), _BLOCK):
        block: List[Instruction] = []
        # Ranges, because a cluster has mostly neighbouring addresses: two instructions instead of one for each.
        for low, high in reversed(ranges[start : start + _BLOCK]):  # built from the end, where the return is
            if low == high:
                block.insert(0, (_IF_EQUAL, len(block) + 1, 0, low))
            else:
                block.insert(0, (_IF_GREATER, 0, len(block) + 1, high))
                block.insert(0, (_IF_GREATER_OR_EQUAL, 0, 1, low))
        program += [*block, (_JUMP, 0, 0, 1), _TASK]
    return program


def _match_words(addresses: Sequence[Tuple[int, ...]], depth: int) -> List[Instruction]:
    """Return a complete program that compares IPv6 addresses from word ``depth`` on."""
    program: List[Instruction] = [(_LOAD_WORD, 0, 0, _SOURCE_IPV6 + 4 * depth)] if addresses else []
    if depth == 3:
        program += _match_any([words[depth] for words in addresses])
    else:
        groups: Dict[int, List[Tuple[int, ...]]] = {}
        for words in addresses:
            groups.setdefault(words[depth], []).append(words)
        for word, group in groups.items():
            rest = _match_words(group, depth + 1)
            # A conditional jump skips 255 instructions at most; an unconditional one reaches any distance.
            is_near = len(rest) <= _FARTHEST
            program += (
                [(_IF_EQUAL, 0, len(rest), word)] if is_near else [(_IF_EQUAL, 1, 0, word), (_JUMP, 0, 0, len(rest))]
            )
            program += rest
    return [*program, _HOLDER]
