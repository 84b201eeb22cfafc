"""Find hosts by DNS: one task per address of a name, such as a service."""

from __future__ import annotations

import ipaddress
import socket
from pathlib import Path

from tflaunch.clusterspec.values import bracketed, split_address
from tflaunch.discovery.base import Engine, Found, NotFoundError


class Dns(Engine):
    """``dns:NAME`` or ``dns:NAME:PORT``."""

    def find(self, where: str, directory: Path) -> Found:
        """Return a name's addresses in numerical order, for the same cluster each time.

        Raises:
            NotFoundError: the name has none.
        """
        host, port = split_address(where)
        try:
            found = socket.getaddrinfo(host or ".", None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            message = f"DNS knows no {host!r}: {getattr(error, 'strerror', None) or error}"
            raise NotFoundError(message, "start its service first, or correct the name") from None
        addresses = {ipaddress.ip_address(str(entry[4][0])) for entry in found}
        ordered = sorted(addresses, key=lambda address: (address.version, address.packed))
        # Only the first kind: a host with an IPv4 and an IPv6 address is one host.
        hosts = [bracketed(str(address)) for address in ordered if address.version == ordered[0].version]
        return Found([host if port is None else f"{host}:{port} slots=1" for host in hosts])
