"""The program that tells the kernel which connections reach a task, and what the core makes of the hosts' addresses."""

from __future__ import annotations

import ipaddress
import random
import socket
import struct
from collections.abc import Sequence

import pytest

from tflaunch_worker.agent.network import fence

pytestmark = pytest.mark.unit

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


def test_addresses_are_plain() -> None:
    assert fence.plain("::ffff:10.0.0.1") == "10.0.0.1"
    assert fence.plain("fe80::1%eth0") == "fe80::1"
    assert all(map(fence.is_loopback, ("127.3.2.1", "::1")))
    assert not any(map(fence.is_loopback, ("::", "10.0.0.1")))
