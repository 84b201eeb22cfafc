"""Resolve the names of the cluster's hosts on this host.

Standard library only, Python >= 3.8: this module runs on hosts.
"""

from __future__ import annotations

import queue
import socket
import threading
import time

_PATIENCE = 8  # seconds for all names together; resolvers give up on a dead server after 5
_AT_ONCE = 16


def look_up(names: list[str]) -> dict[str, str]:
    """Return the addresses of each name, separated by spaces; "" if unresolved. May take seconds."""
    found = _addresses(names)
    return {name: found.get(name, "") for name in names}


def _addresses(names: list[str]) -> dict[str, str]:
    waiting = list(names)
    answers: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()

    def work() -> None:
        while True:
            try:
                name = waiting.pop()
            except IndexError:
                return
            answers.put((name, _address(name)))

    for _ in range(min(_AT_ONCE, len(names))):
        threading.Thread(target=work, daemon=True).start()
    end = time.monotonic() + _PATIENCE
    found: dict[str, str] = {}
    try:
        while len(found) < len(names):
            name, address = answers.get(timeout=max(end - time.monotonic(), 0))
            found[name] = address
    except queue.Empty:
        pass  # a name without an answer by now counts as unresolved
    return found


def _address(name: str) -> str:
    try:
        entries = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return ""
    return " ".join(sorted({str(entry[4][0]) for entry in entries}))
