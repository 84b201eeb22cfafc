"""Profiles as TensorFlow writes them: serialized ``XSpace`` messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def xspace(*planes: bytes) -> bytes:
    """Return a profile with these planes."""
    return b"".join(_bytes(1, plane) for plane in planes)


def plane(name: str, lines: Mapping[str, Sequence[tuple[str, int, int]]]) -> bytes:
    """Return a plane; its lines have events with name, begin and end in picoseconds."""
    names = list(dict.fromkeys(event for events in lines.values() for event, _, _ in events))
    encoded = _bytes(2, name.encode())
    for line, events in lines.items():
        encoded += _bytes(3, _bytes(2, line.encode()) + b"".join(_bytes(4, _event(names, *each)) for each in events))
    for number, event in enumerate(names, 1):
        value = _integer(1, number) + _bytes(2, event.encode())
        encoded += _bytes(4, _integer(1, number) + _bytes(2, value))
    return encoded


def _event(names: list[str], name: str, begin: int, end: int) -> bytes:
    about = _integer(1, names.index(name) + 1) + _integer(2, begin) + _integer(3, end - begin)
    return about + _bytes(4, _integer(1, 5) + _integer(4, 7))  # a statistic


def _integer(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def _bytes(field: int, value: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(value)) + value


def varint(value: int) -> bytes:
    """Return an encoded integer."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
