"""Read the tables in which CPython keeps the lines of a code object."""

import struct


def line_in_steps(table: bytes, first: int, offset: int) -> int:
    """Return the line of a bytecode offset: ``co_lnotab`` of Python 3.8 and 3.9."""
    line, end = first, 0
    for step, lines in struct.iter_unpack("BB", table):
        end += step
        if end > offset:
            break
        line += lines - 256 if lines > 127 else lines
    return line


def line_in_ranges(table: bytes, first: int, offset: int) -> int:
    """Return the line of a bytecode offset: ``co_linetable`` of Python 3.10."""
    line, end = first, 0
    for step, lines in struct.iter_unpack("BB", table):
        end += step
        if lines != 128:  # which marks instructions of no line
            line += lines - 256 if lines > 127 else lines
        if end > offset:
            break
    return line


def line_in_locations(table: bytes, first: int, offset: int) -> int:
    """Return a bytecode offset's line: ``co_linetable`` (Objects/locations.md), 3.11+."""
    line, end, at = first, 0, 0
    while at < len(table):
        kind = table[at] >> 3 & 15
        end += 2 * ((table[at] & 7) + 1)
        at += 1
        if kind in (13, 14):
            number, shift = 0, 0
            for byte in table[at:]:
                number |= (byte & 63) << shift
                shift += 6
                if not byte & 64:
                    break
            line += -(number >> 1) if number & 1 else number >> 1
        elif 10 <= kind <= 12:
            line += kind - 10
        if end > offset:
            break
        while at < len(table) and not table[at] & 128:  # only the first byte of an entry has this bit
            at += 1
    return line
