"""The address of CPython's state in another process, from memory map and symbols."""

from __future__ import annotations

import os
import re
import struct
import sys
from typing import Dict, Tuple

from tflaunch_worker import procfs

_MOST_SYMBOL_BYTES = 64 * 1024 * 1024
_PYTHON_FILE = re.compile(r"python(3\.\d+)(?:\.so[\d.]*)?$")
_SYMBOL = b"_PyRuntime"
_DYNAMIC_SYMBOLS = 11  # SHT_DYNSYM
_LOAD = 1  # PT_LOAD


class UnreadableError(Exception):
    """The stacks of a process cannot be read; the message says why."""


def find_runtime(pid: int) -> Tuple[str, int]:
    """Return a process's Python version, such as "3.11", and the address of its state.

    Raises:
        UnreadableError: it runs no Python, or its memory map cannot be read.
    """
    maps = procfs.read(f"/proc/{pid}/maps")
    if maps is None:
        raise UnreadableError("its memory map cannot be read")
    starts: Dict[str, int] = {}
    for line in maps.splitlines():
        words = line.split(None, 5)
        if len(words) == 6 and words[2] == "00000000" and words[5] not in starts:
            starts[words[5]] = int(words[0].partition("-")[0], 16)
    for path, start in starts.items():
        named = _PYTHON_FILE.search(path)
        if named is None:
            continue
        address = find_symbol(f"/proc/{pid}/root{path}", start)
        if address is None:
            continue
        return named[1], address
    raise UnreadableError("it does not run Python")


def find_symbol(path: str, start: int) -> int | None:
    """Return Python's state address in an ELF file mapped at ``start``, or None."""
    try:
        with open(path, "rb") as file:
            head = file.read(64)
            if head[:6] != b"\x7fELF\x02\x01":
                return None
            programs, sections = struct.unpack_from("<QQ", head, 32)
            program_size, program_count, section_size, section_count = struct.unpack_from("<4H", head, 54)
            file.seek(programs)
            table = file.read(program_size * program_count)
            loads = [
                struct.unpack_from("<16xQ", table, at)[0] & ~0xFFF
                for at in range(0, len(table), program_size)
                if struct.unpack_from("<I", table, at)[0] == _LOAD
            ]
            file.seek(sections)
            table = file.read(section_size * section_count)
            for at in range(0, len(table), section_size):
                kind, offset, size, link = struct.unpack_from("<4xI16xQQI", table, at)
                if kind == _DYNAMIC_SYMBOLS:
                    names_at, names_size = struct.unpack_from("<24xQQ", table, link * section_size)
                    value = _search(_part(file.fileno(), offset, size), _part(file.fileno(), names_at, names_size))
                    return None if value is None or not loads else start + value - min(loads)
    except (OSError, struct.error):
        pass  # it is not readable, or damaged
    return None


def _part(file: int, offset: int, size: int) -> bytes:
    return os.pread(file, min(size, _MOST_SYMBOL_BYTES), min(offset, sys.maxsize))


def _search(symbols: bytes, names: bytes) -> int | None:
    wanted = names.find(b"\0" + _SYMBOL + b"\0") + 1
    if wanted == 0:
        return None
    for name, value in struct.iter_unpack("<I4xQ8x", symbols):
        if name == wanted:
            return int(value)
    return None
