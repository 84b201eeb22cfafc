"""The frames that a supervisor and an agent exchange.

A frame is a header of two unsigned 32-bit integers (length of the message, length of the body), a
message (one JSON object whose ``kind`` names it) and a body of raw bytes, empty except for output.
What an agent says is in the past tense and is the very event that the supervisor reads; what a
supervisor says is imperative. Lengths are checked before anything is believed.

Standard library only, Python >= 3.8: this module runs on hosts.
"""

from __future__ import annotations

import json
import struct

PROTOCOL = 3
"""Version of this vocabulary; both sides refuse another one."""

MAX_MESSAGE = 8 * 1024 * 1024
MAX_BODY = 1024 * 1024

_HEADER = struct.Struct("!II")
_ENCODE = json.JSONEncoder(separators=(",", ":")).encode


class WireError(Exception):
    """The other side did not speak this protocol."""


def encode(message: dict[str, object], body: bytes = b"") -> bytes:
    """Return the frame for a message.

    Raises:
        WireError: the message or the body is larger than the other side would accept.
    """
    head = _ENCODE(message).encode("ascii")
    if len(head) > MAX_MESSAGE or len(body) > MAX_BODY:
        raise WireError(f"a frame of {len(head)} + {len(body)} bytes is too large")
    return _HEADER.pack(len(head), len(body)) + head + body


class Decoder:
    """Cuts a byte stream into frames, whatever the sizes in which the bytes arrive."""

    def __init__(self, most: int = MAX_MESSAGE) -> None:
        """Take messages of at most ``most`` bytes."""
        self._most = most
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[tuple[dict[str, object], bytes]]:
        """Take bytes as they came and return the frames that they complete: (message, body).

        Raises:
            WireError: the bytes are no frame of this protocol; the stream cannot be used further.
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
        message = json.loads(head)
    except (ValueError, RecursionError) as error:
        raise WireError("a frame holds no JSON") from error
    if not isinstance(message, dict) or not isinstance(message.get("kind"), str):
        raise WireError("a frame holds no message with a kind")
    return message
