"""Messages between local processes: JSON over a Unix socket, with descriptors."""

from __future__ import annotations

import array
import json
import os
import socket
from typing import Any, Dict, Sequence

Message = Dict[str, Any]

_LENGTH_BYTES = 4
_MOST_DESCRIPTORS = 3
_LONGEST = 16 * 1024 * 1024


def encode_message(message: Message) -> bytes:
    """Return a message as it is sent."""
    text = json.dumps(message).encode("ascii")
    return len(text).to_bytes(_LENGTH_BYTES, "big") + text


def send_message(connection: socket.socket, message: Message, descriptors: Sequence[int] = ()) -> None:
    """Send a message and copies of descriptors over a blocking socket.

    Raises:
        OSError: the other end has closed the connection, or does not read within the socket's timeout.
    """
    data = encode_message(message)
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
    sent = connection.sendmsg([data], rights, socket.MSG_NOSIGNAL)
    if sent < len(data):  # the other end may have closed the connection after it got all
        connection.sendall(data[sent:])


def receive_message(connection: socket.socket) -> tuple[Message, list[int]]:
    """Wait for a message; return it and its descriptors, which are not inheritable.

    Raises:
        EOFError: the other end has closed the connection.
        OSError: the connection broke, or nothing came within the socket's timeout.
        ValueError: this is not a message.
    """
    size = socket.CMSG_SPACE(_MOST_DESCRIPTORS * array.array("i").itemsize)
    head, ancillary, _, _ = connection.recvmsg(_LENGTH_BYTES, size)
    descriptors = array.array("i")
    for _, _, data in ancillary:
        descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    head += _receive_bytes(connection, _LENGTH_BYTES - len(head))
    length = int.from_bytes(head, "big")
    if length > _LONGEST:
        raise ValueError("the message is too long")
    message = json.loads(_receive_bytes(connection, length))
    if not isinstance(message, dict):
        raise ValueError("the message is not an object")  # noqa: TRY004 - what another process says is a value
    return message, list(descriptors)


def _receive_bytes(connection: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        more = connection.recv(count - len(data))
        if not more:
            raise EOFError
        data += more
    return bytes(data)
