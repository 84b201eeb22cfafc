"""Python stacks of another process, read from its memory without stopping it.

The kernel allows this for processes that the reader may debug, which includes its own children. CPython's structures
are read at the offsets of its release builds for 64-bit Linux; a process of any other build is refused with a reason.
Stacks of running threads may change while they are read: such a thread is read again, and left out if that fails. So
may the list of threads, which is read until it is consistent.
"""

import os
import struct
from collections import namedtuple
from contextlib import closing
from typing import Dict, Iterator, List, NamedTuple, Optional

from tflaunch_worker.features.python_runtime import UnreadableError, find_runtime

MOST_FRAMES = 100  # of a thread, the innermost first
MOST_THREADS = 64  # of a process: the main thread and the newest
_MOST_LISTED = 2000  # threads that are passed on the way to the main thread, the oldest
_MOST_INTERPRETERS = 8
_LONGEST_NAME = 4096  # characters of a file's or function's name
_MOST_LINE_BYTES = 1024 * 1024
_MOST_CODES = 10_000  # kept
_OUTERMOST = ("<module>", "_bootstrap")
_TRIES = 20  # of what may change while it is read: a deep stack of a busy program does so every second time

Frame = namedtuple("Frame", ["file", "line", "function"])
Thread = namedtuple("Thread", ["id", "frames"])
"""A thread with Python frames, the innermost first; ``id`` is the kernel's, 0 where Python does not keep it."""


# From CPython's headers; the same in all patch releases of a minor version. ``frame``: where a thread keeps its
# innermost frame. ``native``: where it keeps the kernel's thread id, 0 before 3.11.
_Layout = namedtuple(
    "_Layout",
    "interpreters threads next_interpreter frame native previous code instruction owner name lines first bytecode "
    "compact",
)
_FILE_NAME = {"3.8": 104, "3.9": 104, "3.10": 104}
_OLD = _Layout(32, 8, 0, 24, 0, 24, 32, 104, 0, 112, 120, 40, 0, (48, 72))
_LAYOUTS = {
    "3.8": _OLD,
    "3.9": _OLD,
    "3.10": _OLD._replace(instruction=96),
    "3.11": _Layout(40, 16, 0, 56, 160, 48, 32, 56, 69, 128, 136, 72, 184, (48, 72)),
    "3.12": _Layout(40, 72, 0, 56, 144, 8, 0, 56, 70, 128, 136, 68, 192, (40, 56)),
    "3.13": _Layout(632, 7344, 7264, 72, 160, 8, 0, 56, 70, 128, 136, 68, 200, (40, 56)),
}
_CURRENT_IN_CFRAME = {"3.11": 8, "3.12": 0}
_OF_C_STACK = 3  # FRAME_OWNED_BY_CSTACK: marks where C code called Python
_REFERENCES = 8  # bytes
_BYTES_SIZE, _BYTES_DATA = 16, 32
_TEXT_LENGTH, _TEXT_STATE = 16, 32
_FRAME_BYTES = 120


def read_threads(pid: int) -> List[Thread]:
    """Return the threads of a process that run Python code, the main thread first.

    Raises:
        UnreadableError: it runs no Python, or one that is not known here, or its memory cannot be read.
    """
    with closing(PythonProcess(pid)) as process:
        return process.read_threads()


class _Code(NamedTuple):
    """A code object; ``pieces``: its bytes, by address; ``frames``: by instruction."""

    file: str
    function: str
    first: int
    lines: bytes
    pieces: Dict[int, bytes]
    frames: Dict[int, Frame]


class PythonProcess:
    """A process that runs Python, for repeated reading: its state is searched once.

    Code objects are kept, and only compared when they are seen again: to decode one takes as long as many frames.
    """

    def __init__(self, pid: int) -> None:
        """Find the state of its Python.

        Raises:
            UnreadableError: it runs no Python, or one that is not known here, or its memory cannot be read.
        """
        self._version, self._runtime = find_runtime(pid)
        if self._version not in _LAYOUTS or struct.calcsize("P") != 8:
            raise UnreadableError(f"stacks of Python {self._version} cannot be read")
        try:
            self._memory = os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise UnreadableError(f"its memory cannot be read: {error.strerror}") from None
        self._at = _LAYOUTS[self._version]
        self._codes: Dict[int, _Code] = {}

    def close(self) -> None:
        """Free the descriptor."""
        os.close(self._memory)

    def read_threads(self) -> List[Thread]:
        """Return the threads of all interpreters; the oldest, the main thread, first.

        Raises:
            UnreadableError: they cannot be read, for example since the process has ended.
        """
        try:
            found = [self._read_whole(state) for state in self._states()]
        except (struct.error, ValueError) as error:
            raise UnreadableError(f"its stacks are not those of Python {self._version}: {error}") from None
        return [thread for thread in reversed(found) if thread is not None]

    def _read_whole(self, state: int) -> Optional[Thread]:
        """Return a thread with its whole stack, None if it cannot be read.

        A frame that begins or ends while it is read leads nowhere, and the stack seems to end there. It is whole if it
        ends where Python begins one, or twice at the same function.
        """
        deepest: Optional[Thread] = None
        for _ in range(_TRIES):
            try:
                native = self._integer(state + self._at.native, "<Q") if self._at.native else 0
                read = Thread(native, list(self._frames(state)))
            except (UnreadableError, struct.error):
                continue
            ends = [(frame.file, frame.function) for frame in read.frames[-1:]]
            if ends and ends[0][1].rpartition(".")[2] in _OUTERMOST:
                return read
            if ends and deepest is not None and ends == [(at.file, at.function) for at in deepest.frames[-1:]]:
                return read
            if deepest is None or len(read.frames) > len(deepest.frames):
                deepest = read
        return deepest

    def _states(self) -> List[int]:
        """Return addresses of thread states: the newest ones first, the main thread last.

        Threads that begin or end at the same time change the lists, which are then read again.
        """
        for _ in range(_TRIES):
            try:
                states = self._read_states()
            except UnreadableError as error:
                problem = error
            else:
                return states[: MOST_THREADS - 1] + states[MOST_THREADS - 1 :][-1:]
        raise problem

    def _read_states(self) -> List[int]:
        states: List[int] = []
        interpreter = self._pointer(self._runtime + self._at.interpreters)
        for _ in range(_MOST_INTERPRETERS):
            if not interpreter or len(states) >= _MOST_LISTED:
                break
            state, before = self._pointer(interpreter + self._at.threads), 0
            while state and len(states) < _MOST_LISTED:
                states.append(state)
                previous, following, owner = struct.unpack("<QQQ", self._read(state, 24))
                if (previous, owner) != (before, interpreter):
                    raise UnreadableError("its list of threads changes all the time")
                state, before = following, state
            interpreter = self._pointer(interpreter + self._at.next_interpreter)
        return states

    def _frames(self, state: int) -> Iterator[Frame]:
        frame = self._pointer(state + self._at.frame)
        if self._version in _CURRENT_IN_CFRAME and frame:
            frame = self._pointer(frame + _CURRENT_IN_CFRAME[self._version])
        raw: List[bytes] = []  # all before the first is decoded: that takes long, and the stack changes
        while frame and len(raw) < MOST_FRAMES:
            raw.append(self._read(frame, _FRAME_BYTES))
            (frame,) = struct.unpack_from("<Q", raw[-1], self._at.previous)
        for data in raw:
            if not self._at.owner or data[self._at.owner] < _OF_C_STACK:
                yield self._frame(struct.unpack_from("<Q", data, self._at.code)[0], data)

    def _frame(self, address: int, data: bytes) -> Frame:
        code = self._code(address)
        if self._at.bytecode:
            (instruction,) = struct.unpack_from("<Q", data, self._at.instruction)
            instruction -= address + self._at.bytecode
        else:
            (instruction,) = struct.unpack_from("<i", data, self._at.instruction)
        frame = code.frames.get(instruction)
        if frame is None:
            frame = code.frames[instruction] = Frame(code.file, self._line(code, instruction), code.function)
        return frame

    def _line(self, code: _Code, instruction: int) -> int:
        if self._at.bytecode:
            return _line_in_locations(code.lines, code.first, instruction)
        if self._version == "3.10":
            return _line_in_ranges(code.lines, code.first, 2 * instruction)
        return _line_in_steps(code.lines, code.first, instruction)

    def _code(self, address: int) -> _Code:
        """Return the code object at an address, read again if its bytes have changed."""
        known = self._codes.get(address)
        if known is None or any(self._read(at, len(piece)) != piece for at, piece in known.pieces.items()):
            if len(self._codes) >= _MOST_CODES:
                self._codes.clear()
            known = self._codes[address] = self._read_code(address)
        return known

    def _read_code(self, address: int) -> _Code:
        begin, size = address + self._at.first, self._at.lines + 8 - self._at.first
        data = self._read(begin, size)
        file, name, lines = (
            struct.unpack_from("<Q", data, place - self._at.first)[0]
            for place in (_FILE_NAME.get(self._version, 112), self._at.name, self._at.lines)
        )
        (first,) = struct.unpack_from("<i", data)
        pieces = {begin: data}
        return _Code(self._text(file, pieces), self._text(name, pieces), first, self._bytes(lines, pieces), pieces, {})

    def _text(self, address: int, pieces: Dict[int, bytes]) -> str:
        head = self._read(address, self._at.compact[0])
        (length,) = struct.unpack_from("<q", head, _TEXT_LENGTH)
        (state,) = struct.unpack_from("<I", head, _TEXT_STATE)
        width, is_compact, is_ascii = state >> 2 & 7, state >> 5 & 1, state >> 6 & 1
        if not 0 <= length <= _LONGEST_NAME or not is_compact or width not in (1, 2, 4):
            raise UnreadableError("a name is not text")
        begin = self._at.compact[0 if is_ascii else 1]
        data = self._read_piece(address, begin + length * width, pieces)[begin:]
        return data.decode({1: "latin-1", 2: "utf-16-le", 4: "utf-32-le"}[width], "replace")

    def _bytes(self, address: int, pieces: Dict[int, bytes]) -> bytes:
        size = self._integer(address + _BYTES_SIZE, "<q")
        if not 0 <= size <= _MOST_LINE_BYTES:
            raise UnreadableError("a line table is not bytes")
        return self._read_piece(address, _BYTES_DATA + size, pieces)[_BYTES_DATA:]

    def _read_piece(self, address: int, size: int, pieces: Dict[int, bytes]) -> bytes:
        """Return an object's bytes; keep them except the reference count, which changes."""
        data = self._read(address, size)
        pieces[address + _REFERENCES] = data[_REFERENCES:]
        return data

    def _pointer(self, address: int) -> int:
        return self._integer(address, "<Q")

    def _integer(self, address: int, kind: str) -> int:
        return int(struct.unpack(kind, self._read(address, 8))[0])

    def _read(self, address: int, size: int) -> bytes:
        try:
            data = os.pread(self._memory, size, address)
        except (OSError, OverflowError) as error:
            raise UnreadableError(f"its memory cannot be read: {error}") from None
        if len(data) < size:
            raise UnreadableError("its memory cannot be read")
        return data


# ---- the tables in which code objects keep their lines


def _line_in_steps(table: bytes, first: int, offset: int) -> int:
    """Return the line of a bytecode offset: ``co_lnotab`` of Python 3.8 and 3.9."""
    line, end = first, 0
    for step, lines in struct.iter_unpack("BB", table):
        end += step
        if end > offset:
            break
        line += lines - 256 if lines > 127 else lines
    return line


def _line_in_ranges(table: bytes, first: int, offset: int) -> int:
    """Return the line of a bytecode offset: ``co_linetable`` of Python 3.10."""
    line, end = first, 0
    for step, lines in struct.iter_unpack("BB", table):
        end += step
        if lines != 128:  # which marks instructions of no line
            line += lines - 256 if lines > 127 else lines
        if end > offset:
            break
    return line


def _line_in_locations(table: bytes, first: int, offset: int) -> int:
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
