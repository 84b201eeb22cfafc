"""The port fence: the kernel's program, what the core makes of the hosts' addresses, and what users read of it."""

import ipaddress
import random
import socket
import struct
from collections.abc import Sequence

import pytest

from support.job_history import History
from support.specs import clustered
from tflaunch.core import port_fence
from tflaunch.core.actions import UpdateFence
from tflaunch.core.event_records import from_agent, from_record
from tflaunch.core.events import (
    Event,
    HostJoined,
    HostLost,
    LinkLost,
    NamesResolved,
    OutsiderRefused,
    PeerSeen,
    PortsHeld,
    PortUnfenced,
)
from tflaunch.core.job_state import Cause, Phase
from tflaunch_worker.agent.network import fence

NETWORK_HEADER = 0xFFF00000


def run(program: Sequence[tuple[int, int, int, int]], packet: bytes) -> int:
    """Return what a BPF program returns for a packet: only the instructions that a fence may use."""
    place, accumulator = 0, 0
    while True:
        code, if_true, if_false, operand = program[place]
        place += 1
        match code:
            case 0x20:
                (accumulator,) = struct.unpack_from("!I", packet, operand - NETWORK_HEADER)
            case 0x30:
                accumulator = packet[operand - NETWORK_HEADER]
            case 0x74:
                accumulator >>= operand
            case 0x05:
                place += operand
            case 0x15:
                place += if_true if accumulator == operand else if_false
            case 0x25:
                place += if_true if accumulator > operand else if_false
            case 0x35:
                place += if_true if accumulator >= operand else if_false
            case 0x06:
                return operand
            case _:
                raise AssertionError(f"instruction {code:#x}")


def packet_from(source: str) -> bytes:
    """Return the start of a packet, up to its source address."""
    if ":" in source:
        return b"\x60" + bytes(7) + socket.inet_pton(socket.AF_INET6, source)
    return b"\x45" + bytes(11) + socket.inet_pton(socket.AF_INET, source)


def neighbours(address: str) -> list[str]:
    """Return addresses that differ by little, as far as they exist."""
    parsed = ipaddress.ip_address(address)
    bits = parsed.max_prefixlen
    changed = [int(parsed) + 1, int(parsed) - 1, *(int(parsed) ^ (1 << bit) for bit in range(0, bits, 7))]
    return [str(type(parsed)(number)) for number in changed if 0 <= number < 1 << bits]


@pytest.mark.parametrize("seed", range(20))
def test_exactly_the_admitted_addresses_reach_the_task(seed: int) -> None:
    """Any mixture of IPv4 and IPv6, alone, in rows and scattered."""
    draw = random.Random(seed)
    admitted = {"127.0.0.1", "::1"} if seed % 3 else set()
    for _ in range(draw.randrange(1, 8)):
        row = draw.getrandbits(32)
        admitted |= {str(ipaddress.IPv4Address((row + step) % 2**32)) for step in range(draw.choice((1, 1, 2, 300)))}
        admitted |= {str(ipaddress.IPv4Address(draw.getrandbits(32))) for _ in range(draw.choice((0, 3, 250)))}
        prefix = draw.getrandbits(64) << 64
        admitted |= {str(ipaddress.IPv6Address(prefix + draw.getrandbits(64))) for _ in range(draw.choice((0, 1, 60)))}
        admitted |= {str(ipaddress.IPv6Address(prefix + step)) for step in range(draw.choice((0, 5)))}
    program = fence.compile_program(sorted(admitted))
    assert all(max(jumps) < 256 for _, *jumps, _ in program)
    for address in draw.sample(sorted(admitted), min(len(admitted), 200)):
        assert run(program, packet_from(address)) == 1
        for other in neighbours(address):
            assert run(program, packet_from(other)) == (other in admitted), other


def test_what_lies_between_two_addresses_is_not_admitted() -> None:
    """Only addresses that follow each other are one range; a family without addresses is refused."""
    admitted = (1, 3, 4, 7)
    program = fence.compile_program([f"10.0.0.{number}" for number in admitted])
    assert [number for number in range(10) if run(program, packet_from(f"10.0.0.{number}"))] == [*admitted]
    assert run(program, packet_from("::1")) == 0
    assert run(fence.compile_program(["::1"]), packet_from("10.0.0.1")) == 0


def test_the_hosts_of_a_large_cluster_fit() -> None:
    """1,000 hosts in a row with two networks, and 600 whose IPv6 addresses have nothing in common but the prefix."""
    rows = [f"10.{net}.{number // 250}.{number % 250 + 1}" for net in (1, 2) for number in range(1000)]
    draw = random.Random(1)
    scattered = [str(ipaddress.IPv6Address((0x20010DB8 << 96) + draw.getrandbits(64))) for _ in range(600)]
    assert len(fence.compile_program([*rows, *scattered, "127.0.0.1", "::1"])) <= 4096
    assert [*map(fence.plain, ("::ffff:10.0.0.1", "fe80::1%eth0"))] == ["10.0.0.1", "fe80::1"]
    assert all(map(fence.is_loopback, ("127.3.2.1", "::1")))
    assert not any(map(fence.is_loopback, ("::", "10.0.0.1")))


HOSTS = {"chief": ["a"], "worker": ["b", "c"], "ps": ["a"]}
BEFORE: list[Event] = [
    HostJoined("a", "10.0.0.1 127.0.0.1 ::1"),
    HostJoined("b", "10.0.0.2 127.0.0.1 ::1"),
    HostJoined("c", "10.0.0.3 127.0.0.1 ::1"),
    *(NamesResolved(host, {other: "10.0.0.9" for other in "abc" if other != host}) for host in "abc"),
    PortsHeld("a", {"chief:0": 1, "ps:0": 2}),
    PortsHeld("b", {"worker:0": 1}),
    PortsHeld("c", {"worker:1": 1}),
]
ALL = ["10.0.0.1", "10.0.0.2", "10.0.0.3", "127.0.0.1", "::1"]


def started(**fields: object) -> History:
    """Return a job on three hosts whose tasks have been started."""
    history = History(clustered(HOSTS, **fields)).happens(*BEFORE)
    assert history.job.phase is Phase.RUNNING
    return history


def test_hosts_follow_the_cluster() -> None:
    """A lost host is kept out by the others; when it is back, it is admitted with its new address.

    Also one that changes while a job trains for days is known at the next attempt.
    """
    moved = started().happens(PortsHeld("c", {"worker:1": 1}, "10.0.0.7 127.0.0.1 ::1"))
    assert port_fence.admitted(moved.job) == ["10.0.0.1", "10.0.0.2", "10.0.0.7", "127.0.0.1", "::1"]
    history = started()
    assert port_fence.admitted(history.job) == ALL
    assert port_fence.admitted(history.happens(LinkLost("c", "silent")).job) == ALL
    history.happens(HostLost("c", "its agent was killed"))
    assert port_fence.admitted(history.job) == [address for address in ALL if address != "10.0.0.3"]
    updated = [action.host for action in history.actions if isinstance(action, UpdateFence)]
    assert updated == ["a", "b"]
    history.wait().happens(HostJoined("c", "10.0.0.4"))
    assert "10.0.0.4" in port_fence.admitted(history.job)
    assert [action.host for action in history.actions if isinstance(action, UpdateFence)] == ["a", "b"]


def test_an_address_that_a_peer_comes_from_is_admitted() -> None:
    """Such as that of a router, which no host knows, or of a host that does not know its own."""
    unknown = History(clustered(HOSTS)).happens(*(HostJoined("c") if e == BEFORE[2] else e for e in BEFORE))
    assert port_fence.admitted(unknown.job) == [address for address in ALL if address != "10.0.0.3"]
    assert port_fence.admitted(unknown.happens(PeerSeen("a", "10.0.0.3")).job) == ALL
    history = started().happens(PeerSeen("a", "192.0.2.1"))
    assert "192.0.2.1" in port_fence.admitted(history.job)
    assert [action.host for action in history.actions if isinstance(action, UpdateFence)] == ["a", "b", "c"]
    history.happens(PeerSeen("b", "192.0.2.1"))
    assert not history.actions
    assert not started(network="open").happens(PeerSeen("a", "192.0.2.1")).actions


def test_an_outsider_is_named_once() -> None:
    history = started()
    (line,) = history.told(OutsiderRefused("a", "ps:0", "192.0.2.1"))
    assert line.startswith("refused a connection from 192.0.2.1 to ps:0 on a, ")
    assert line.endswith('leave out --no-preflight, which would have found it, or set "network": "open"')
    assert history.told(OutsiderRefused("b", "worker:0", "192.0.2.1")) == []
    lines = [history.told(OutsiderRefused("a", "ps:0", f"192.0.2.{number}")) for number in range(2, 100)]
    assert sum(map(len, lines)) == 15


def test_a_task_without_a_fence_is_told_once_and_the_job_goes_on_unless_it_needs_it() -> None:
    history, why = started(), "the kernel does not allow it"
    (line,) = history.told(PortUnfenced("a", "ps:0", why))
    assert line == f"warning: connections from everywhere can reach ps:0 on a: {why}"
    assert history.told(PortUnfenced("b", "worker:0", why)) == []
    assert history.job.phase is Phase.RUNNING
    history = started(network="fenced-or-fail").happens(PortUnfenced("a", "ps:0", why))
    assert (history.job.phase, history.job.exit_code is None) == (Phase.STOPPING, False)
    assert history.culprit.cause is Cause.PORTS
    assert history.culprit.message.endswith(f'{why}; "network": "open" lets everybody through')


@pytest.mark.parametrize("source", ["", "h1", "10.0.0.256", "10.0.0.1 10.0.0.2", "\x1b[2J"])
def test_an_address_is_checked(source: str) -> None:
    with pytest.raises(ValueError, match="address"):
        from_agent("a", {"kind": "peer_seen", "source": source})
    assert from_record({"kind": "host_joined", "host": "a"}) == HostJoined("a", ""), "as an earlier version wrote it"
