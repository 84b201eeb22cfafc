"""A stand-in for systemd-logind and its D-Bus, by which a kubelet learns that its node shuts down.

It speaks as much of the protocol as kubelet 1.20 needs: its calls, and the signal PrepareForShutdown.
"""

import socket
import struct
import threading
from collections.abc import Mapping
from pathlib import Path

_CALL, _RETURN, _SIGNAL = 1, 2, 4
_PATH, _INTERFACE, _MEMBER, _REPLY_TO, _SIGNATURE = 1, 2, 3, 5, 8
_LONGEST_DELAY = 3600 * 10**6  # microseconds
_NO_DESCRIPTOR = 1 << 20  # a lock that the kubelet closes in vain
_ANSWERS = {
    "Hello": ("s", struct.pack("<I", 4) + b":1.1\0"),
    "Get": ("v", b"\x01t\0" + bytes(5) + struct.pack("<Q", _LONGEST_DELAY)),  # InhibitDelayMaxUSec
    "Inhibit": ("u", struct.pack("<I", _NO_DESCRIPTOR)),
}
"""Signature and body of the answers to calls; that to AddMatch is empty."""


class Logind:
    """Serves the socket in ``path`` until this process ends."""

    def __init__(self, path: Path) -> None:
        self._clients: list[socket.socket] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def tell(self, *, is_shutting_down: bool) -> None:
        """Tell all kubelets that their node shuts down, or that this was called off."""
        headers = {
            _PATH: ("o", "/org/freedesktop/login1"),
            _INTERFACE: ("s", "org.freedesktop.login1.Manager"),
            _MEMBER: ("s", "PrepareForShutdown"),
            _SIGNATURE: ("g", "b"),
        }
        for client in self._clients:
            client.sendall(_message(_SIGNAL, headers, struct.pack("<I", is_shutting_down)))

    def _accept(self) -> None:
        while True:
            client, _ = self._listener.accept()  # no limit: it serves until the process ends
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        stream = client.makefile("rb")
        while (line := stream.readline().lstrip(b"\0").split()) and line[0] != b"BEGIN":
            known = {(b"AUTH",): b"REJECTED EXTERNAL", (b"AUTH", b"EXTERNAL"): b"OK 0"}
            client.sendall(known.get(tuple(line[:2]), b"ERROR") + b"\r\n")
        self._clients.append(client)
        while len(start := stream.read(16)) == 16:
            _, kind, _, _, length, serial, size = struct.unpack("<cBBBIII", start)
            headers = stream.read((size + 7) // 8 * 8)
            stream.read(length)
            if kind == _CALL:
                client.sendall(_answer(serial, headers))


def _answer(serial: int, headers: bytes) -> bytes:
    """Return the answer to a call, which is known by its name."""
    name = next((name for name in _ANSWERS if b"\x01s\0" + struct.pack("<I", len(name)) + name.encode() in headers), "")
    signature, body = _ANSWERS.get(name, ("", b""))
    return _message(_RETURN, {_REPLY_TO: ("u", serial), _SIGNATURE: ("g", signature)}, body)


def _message(kind: int, headers: Mapping[int, tuple[str, str | int]], body: bytes) -> bytes:
    packed = b""
    for field, (signature, value) in headers.items():
        packed += bytes(-len(packed) % 8) + bytes([field, 1]) + signature.encode() + b"\0"
        if isinstance(value, int):
            packed += struct.pack("<I", value)
        elif signature == "g":
            packed += bytes([len(value)]) + value.encode() + b"\0"
        else:
            packed += struct.pack("<I", len(value)) + value.encode() + b"\0"
    head = struct.pack("<cBBBIII", b"l", kind, 1, 1, len(body), 1, len(packed))
    return head + packed + bytes(-len(packed) % 8) + body
