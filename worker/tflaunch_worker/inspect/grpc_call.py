"""Make one unary gRPC call over a plain TCP connection: as much of HTTP/2 as that needs.

TensorFlow's own client is a part of `import tensorflow`, which takes seconds of the CPU that the tasks of the host
need, and not every Python that runs an agent has `grpcio`.

Standard library only, Python >= 3.8: this module runs on hosts.
"""

from __future__ import annotations

import socket
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Iterator, Tuple

    Frame = Tuple[int, int, int, bytes]
    """Type, flags, stream and payload."""

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RESET, _SETTINGS, _PING, _GO_AWAY, _WINDOW_UPDATE, _CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
_END_STREAM, _ACK, _END_HEADERS, _PADDED, _PRIORITY = 1, 1, 4, 8, 32  # flags
_HEADER_TABLE_SIZE, _ENABLE_PUSH, _INITIAL_WINDOW = 1, 2, 4  # settings
_MOST_WINDOW = 2**31 - 1
_MOST_FRAME = 16384  # bytes, until a peer allows more
_MOST_REPLY = 64 * 1024 * 1024
_STREAM = 1
_CANCELLED, _EXHAUSTED, _UNAVAILABLE = 1, 8, 14
_CODES = {4: "deadline exceeded", 8: "resource exhausted", 12: "unimplemented", 13: "internal", 14: "unavailable"}


class CallFailed(Exception):
    """The call failed. ``code``: of gRPC, -1 if what listens does not speak gRPC; the message is the server's."""

    def __init__(self, message: str, code: int = -1) -> None:
        super().__init__(message)
        self.code = code


def call(connection: socket.socket, method: str, request: bytes, timeout: float) -> bytes:
    """Call a method of the server at the other end of a new connection, and return its reply.

    Closing the connection cancels the call.

    Args:
        connection: a blocking socket; it is not closed.
        method: such as ``/package.Service/Method``.
        request: the serialized message, of at most 16 kB.
        timeout: the server's time limit, in seconds.

    Raises:
        CallFailed: the server returns an error, or is not a gRPC server.
        OSError: the connection fails.
    """
    settings = {_HEADER_TABLE_SIZE: 0, _ENABLE_PUSH: 0, _INITIAL_WINDOW: _MOST_WINDOW}
    headers = {
        ":method": "POST",
        ":scheme": "http",
        ":path": method,
        ":authority": "localhost",
        "te": "trailers",
        "content-type": "application/grpc",
        "grpc-timeout": f"{int(timeout)}S",
        "user-agent": "tflaunch",
    }
    payload = struct.pack("!BI", 0, len(request)) + request
    if len(payload) > _MOST_FRAME:
        raise ValueError(f"a request has at most {_MOST_FRAME} bytes")
    connection.sendall(
        _PREFACE
        + _frame(_SETTINGS, 0, 0, b"".join(struct.pack("!HI", *setting) for setting in settings.items()))
        + _frame(_WINDOW_UPDATE, 0, 0, struct.pack("!I", _MOST_WINDOW - 65535))
        + _frame(_HEADERS, _END_HEADERS, _STREAM, _encode_headers(headers))
        + _frame(_DATA, _END_STREAM, _STREAM, payload)
    )
    trailers, reply = _receive(connection)
    status = _find_header(trailers, b"grpc-status")
    if status != b"0":
        code = int(status) if status.isdigit() else -1
        message = _find_header(trailers, b"grpc-message").decode("utf-8", "replace")
        raise CallFailed(_unquote(message) or _CODES.get(code, f"code {code}"), code)
    return reply[5:]


def _receive(connection: socket.socket) -> Tuple[bytes, bytes]:
    """Return the last block of headers and the data of our stream."""
    block, reply, ends = bytearray(), bytearray(), False
    for kind, flags, stream, payload in _frames(connection):
        if kind in (_SETTINGS, _PING):
            if not flags & _ACK:
                connection.sendall(_frame(kind, _ACK, 0, payload if kind == _PING else b""))
        elif kind == _GO_AWAY or (kind == _RESET and stream == _STREAM):
            raise CallFailed("the server has cancelled the call", _CANCELLED)
        elif kind == _DATA and stream == _STREAM:
            reply += _content(kind, flags, payload)
            if len(reply) > _MOST_REPLY:
                raise CallFailed("the reply is too large", _EXHAUSTED)
        elif kind in (_HEADERS, _CONTINUATION) and stream == _STREAM:
            if kind == _HEADERS:
                block.clear()
                ends = bool(flags & _END_STREAM)
            block += _content(kind, flags, payload)
            if flags & _END_HEADERS and ends:
                break
    return bytes(block), bytes(reply)


def _content(kind: int, flags: int, payload: bytes) -> bytes:
    """Return the payload of a frame without padding and priority."""
    if kind != _CONTINUATION and flags & _PADDED and payload:
        payload = payload[1 : len(payload) - payload[0]]
    return payload[5:] if kind == _HEADERS and flags & _PRIORITY else payload


def _frames(connection: socket.socket) -> Iterator[Frame]:
    """Yield the frames of the server; the first one must be its settings."""
    is_first = True
    while True:
        head = _read(connection, 9, is_first)
        length, kind = int.from_bytes(head[:3], "big"), head[3]
        if length > _MOST_FRAME or (is_first and kind != _SETTINGS):
            raise CallFailed("it does not speak gRPC")
        is_first = False
        yield kind, head[4], int.from_bytes(head[5:], "big") & _MOST_WINDOW, _read(connection, length, False)


def _read(connection: socket.socket, size: int, is_first: bool) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            if is_first:
                raise ConnectionResetError("it hung up without an answer")
            raise CallFailed("the server has hung up", _UNAVAILABLE)
        data += part
    return bytes(data)


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + struct.pack("!BBI", kind, flags, stream) + payload


def _encode_headers(headers: Dict[str, str]) -> bytes:
    """Return headers as literals that no table keeps; names and values have fewer than 127 bytes."""
    texts = ((name.encode("ascii"), value.encode("ascii")) for name, value in headers.items())
    return b"".join(b"\0" + bytes((len(name),)) + name + bytes((len(value),)) + value for name, value in texts)


def _find_header(block: bytes, name: bytes) -> bytes:
    """Return the value of a header that no static table of HPACK contains; b"" if it is not there.

    Servers must send it in full, as they were allowed no table of their own; gRPC does not compress text.
    """
    at = block.find(bytes((len(name),)) + name)
    if at < 0:
        return b""
    at += 1 + len(name)
    size, at = _read_length(block, at)
    return block[at : at + size]


def _read_length(block: bytes, at: int) -> Tuple[int, int]:
    """Return an integer of HPACK with a prefix of 7 bits, and where it ends."""
    size = block[at] & 0x7F if at < len(block) else 0
    at += 1
    if size < 0x7F:
        return size, at
    shift = 0
    while at < len(block) and shift < 28:
        size += (block[at] & 0x7F) << shift
        shift += 7
        at += 1
        if block[at - 1] < 0x80:
            break
    return size, at


def _unquote(message: str) -> str:
    from urllib.parse import unquote  # errors only

    return unquote(message, errors="replace")
