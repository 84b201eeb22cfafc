"""Read a profile of TensorFlow (a serialized ``XSpace``) without TensorFlow: lines of timed events by plane. Pure.

Only names and times are read. Whole lines, which are threads or streams of a device, can be skipped by their names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

_PLANES = 1  # of XSpace
_PLANE_NAME, _LINES, _EVENT_METADATA = 2, 3, 4
_LINE_NAME, _LINE_TIMESTAMP, _EVENTS = 2, 3, 4
_EVENT_OFFSET, _EVENT_DURATION = 2, 3
_KEY, _VALUE = 1, 2  # of an entry of a map
_METADATA_NAME = 2
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_LONGEST_VARINT = 10


class Line(NamedTuple):
    """Events of one thread or stream: number of a name in the plane, begin and end in picoseconds."""

    name: str
    events: list[tuple[int, int, int]]


class Plane(NamedTuple):
    """What one device, or the host, has recorded; ``names``: of events, by their numbers."""

    name: str
    names: Mapping[int, str]
    lines: list[Line]


def read_planes(data: bytes, wanted: Callable[[str, str], bool]) -> list[Plane]:
    """Return the planes of a profile, each with the lines for which ``wanted(plane, line)`` holds.

    Raises:
        ValueError: this is not a profile.
    """
    try:
        view = memoryview(data)
        return [_read_plane(view[at:end], wanted) for field, at, end in _fields(view) if field == _PLANES]
    except IndexError:
        raise ValueError("the profile is cut off") from None


def _read_plane(data: memoryview, wanted: Callable[[str, str], bool]) -> Plane:
    name, names, lines = "", {}, []
    for field, at, end in _fields(data):
        if field == _PLANE_NAME:
            name = _text(data[at:end])
        elif field == _LINES:
            lines.append(data[at:end])
        elif field == _EVENT_METADATA:
            number, label = _read_metadata(data[at:end])
            names[number] = label
    read = (_read_line(line, name, wanted) for line in lines)
    return Plane(name, names, [line for line in read if line is not None])


def _read_metadata(data: memoryview) -> tuple[int, str]:
    number, name = 0, ""
    for field, at, end in _fields(data):
        if field == _KEY:
            number = at
        elif field == _VALUE:
            value = data[at:end]
            name = next((_text(value[a:b]) for known, a, b in _fields(value) if known == _METADATA_NAME), "")
    return number, name


def _read_line(data: memoryview, plane: str, wanted: Callable[[str, str], bool]) -> Line | None:
    """Return a line of a plane, None if it is not wanted."""
    name, start, events = "", 0, []
    for field, at, end in _fields(data):
        if field == _LINE_NAME:
            name = _text(data[at:end])
            if not wanted(plane, name):
                return None
        elif field == _LINE_TIMESTAMP:
            start = at * 1000
        elif field == _EVENTS:
            events.append((at, end))
    return Line(name, [_read_event(data, at, end, start) for at, end in events])


def _read_event(data: memoryview, at: int, end: int, start: int) -> tuple[int, int, int]:
    """Return the number of an event's name, and its begin and end; what follows these fields is not read."""
    values = [0, 0, 0, 0]
    while at < end:
        tag = data[at]
        if tag & 7 or tag >> 3 > _EVENT_DURATION:
            break
        at += 1
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
        values[tag >> 3] = value
    begin = start + values[_EVENT_OFFSET]
    return values[1], begin, begin + values[_EVENT_DURATION]


def _fields(data: memoryview) -> Iterator[tuple[int, int, int]]:
    """Yield number, begin and end of each field of a message; for integers the value, twice.

    Raises:
        ValueError: this is not a message.
        IndexError: it is cut off.
    """
    at, size = 0, len(data)
    while at < size:
        tag, at = _varint(data, at)
        kind = tag & 7
        if kind == _VARINT:
            value, at = _varint(data, at)
            yield tag >> 3, value, value
            continue
        if kind == _BYTES:
            length, at = _varint(data, at)
        elif kind in (_FIXED64, _FIXED32):
            length = 8 if kind == _FIXED64 else 4
        else:
            raise ValueError("this is not a profile")
        if at + length > size:
            raise IndexError
        yield tag >> 3, at, at + length
        at += length


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    for _ in range(_LONGEST_VARINT):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise ValueError("this is not a profile")


def _text(data: memoryview) -> str:
    return bytes(data).decode("utf-8", "replace")
