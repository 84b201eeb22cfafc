"""Find hosts by DNS: one task per address of a name, such as a Compose or headless Kubernetes service."""

from __future__ import annotations

import ipaddress
import socket
from pathlib import Path

from tflaunch.discovery.base import Engine, Found, NotFoundError


class Dns(Engine):
    """``dns:NAME`` or ``dns:NAME:PORT``."""

    def find(self, where: str, directory: Path) -> Found:
        """Return the addresses of a name, sorted numerically, so that every lookup gives the same cluster.

        Raises:
            NotFoundError: the name has none.
        """
        host, colon, port = where.partition(":")
        try:
            found = socket.getaddrinfo(host or ".", None, socket.AF_INET, socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            message = f"DNS knows no {host!r}: {getattr(error, 'strerror', None) or error}"
            raise NotFoundError(message, "start its service first, or correct the name") from None
        addresses = sorted({str(entry[4][0]) for entry in found}, key=ipaddress.IPv4Address)
        return Found([f"{address}{colon}{port}" for address in addresses])
