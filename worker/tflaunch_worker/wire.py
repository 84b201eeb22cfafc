"""Encode and decode the frames that a supervisor and an agent exchange.

A frame is a header of two unsigned 32-bit integers (length of the message, length of the body), a message (one JSON
object whose ``kind`` names it) and a body of raw bytes, empty except for output, files and the cluster. An agent's
messages are in the past tense; a supervisor's are imperative. They are of three sorts. *Orders* are numbered, and sent
again until they are obeyed; what comes of them are *events*, numbered too, and sent again until they are recorded.
*Calls* are answered over the same link (``answered``, before it any number of ``told``), or lost with it.
What an agent takes is in `agent.orders` and in the ``CALLS`` of features; what a supervisor takes is in the launcher's
`agents.session`, and, of events, in `core.events`.
Lengths are checked before any content is used.
"""

from __future__ import annotations

import json
import math
import struct
from itertools import chain
from typing import Any, List, Union

PROTOCOL = 10
"""Version of this protocol; both sides refuse any other."""

MAX_MESSAGE = 8 * 1024 * 1024
MAX_BODY = 1024 * 1024
MAX_DEPTH = 32
MAX_VALUES = 1_000_000
"""Maximum of values in a JSON text, roughly: small texts from outside must not become large objects."""

_HEADER = struct.Struct("!II")
_ENCODE = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode


class WireError(Exception):
    """Raised when the other side violates this protocol."""


def encode(message: dict[str, object], body: bytes = b"") -> bytes:
    """Return the frame for a message; raise `WireError` if it is too large."""
    return encode_head(message, len(body)) + body


def encode_head(message: dict[str, object], body_size: int) -> bytes:
    """Return a frame up to its body of ``body_size`` bytes; raises as `encode` does."""
    head = _ENCODE(message).encode("ascii")
    if len(head) > MAX_MESSAGE or body_size > MAX_BODY:
        raise WireError(f"a frame of {len(head)} + {body_size} bytes is too large")
    return _HEADER.pack(len(head), body_size) + head


class Decoder:
    """Splits a byte stream into frames, however the bytes are chunked."""

    def __init__(self, most: int = MAX_MESSAGE) -> None:
        """Accept messages of at most ``most`` bytes."""
        self._most = most
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[tuple[dict[str, object], bytes]]:
        """Return the frames (message, body) that these bytes complete.

        Raises:
            WireError: the bytes are not a valid frame; the stream cannot be used further.
        """
        self._buffer += data
        frames = []
        start = 0
        while len(self._buffer) - start >= _HEADER.size:
            head_size, body_size = _HEADER.unpack_from(self._buffer, start)
            if head_size > self._most or body_size > MAX_BODY:
                raise WireError(f"a frame announces {head_size} + {body_size} bytes")
            head_start = start + _HEADER.size
            body_start = head_start + head_size
            end = body_start + body_size
            if len(self._buffer) < end:
                break
            with memoryview(self._buffer) as view:
                head, body = bytes(view[head_start:body_start]), bytes(view[body_start:end])
            frames.append((_message(head), body))
            start = end
        del self._buffer[:start]
        return frames


def _message(head: bytes) -> dict[str, object]:
    try:
        message = parse(head)
    except ValueError as error:
        raise WireError(f"a frame holds no valid message: {error}") from error
    if not isinstance(message, dict) or not isinstance(message.get("kind"), str):
        raise WireError("a frame holds no message with a kind")
    return message


# ---- JSON from outside


def parse(text: Union[bytes, str], max_values: int = MAX_VALUES) -> Any:
    """Return the value of a JSON text from another process or a file.

    Stricter than `json.loads`: numbers are finite, integers have at most 64 bits, values are nested at most `MAX_DEPTH`
    deep, and all text can be encoded. Bytes of paths and arguments that are not UTF-8 may be represented as U+DC80 to
    U+DCFF (surrogateescape). The caller limits the size by how much it reads; the number of values is estimated from
    commas, colons and brackets. Raises `ValueError` with the reason for any other text.
    """
    data = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text
    containers = data.count(b"[") + data.count(b"{")
    if len(data) > max_values and containers + data.count(b",") + data.count(b":") > max_values:
        raise ValueError("it holds too many values")
    try:
        value = _DECODE(text if isinstance(text, str) else data.decode("utf-8"))
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    if containers > MAX_DEPTH:
        _check_depth(value)
    if b"\\" in data and (b"\\ud" in data or b"\\uD" in data):
        _ENCODE_AS_IS(value).encode("utf-8", "surrogateescape")
    return value


def _check_depth(value: object) -> None:
    level: List[Any] = [value]
    for _ in range(MAX_DEPTH):
        items = chain.from_iterable(one.values() if type(one) is dict else one for one in level)
        level = [item for item in items if type(item) in _CONTAINERS]
        if not level:
            return
    raise ValueError("it is nested too deep")


def _integer(digits: str) -> int:
    if len(digits) < 19:
        return int(digits)
    if len(digits) > 20 or not -(2**63) <= int(digits) < 2**63:
        raise ValueError(f"the integer {digits[:20]}... has more than 64 bits")
    return int(digits)


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"the number {digits[:20]} is too large")
    return number


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a number")


_DECODE = json.JSONDecoder(parse_int=_integer, parse_float=_finite, parse_constant=_refuse_constant).decode
_ENCODE_AS_IS = json.JSONEncoder(ensure_ascii=False).encode
_CONTAINERS = frozenset((dict, list))
