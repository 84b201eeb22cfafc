"""The first frame of a connection between relays: which host and task it is for, and whether it is admitted.

Standard library only, Python >= 3.8: this module runs on hosts.
"""

from __future__ import annotations

import json

from tflaunch_worker import fields, wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Collection, Dict, Mapping, Tuple

HEADER_BYTES = 2
LONGEST_FRAME = 4096
LINK = ""
"""In place of a task: the connection is a link, which carries no data (see `relay`)."""

ADMITTED, REFUSED = b"+", b"-"
"""The answer to a frame, one byte."""

_LONGEST_NAME = 1000
_NAMES_OF_KEYS = ("authority", "certificate", "key")


class Network:
    """What a relay knows of the network of a run: an order of the supervisor, checked.

    Attributes:
        run: the run.
        attempt: the attempt of the gang.
        own: the virtual address of this host.
        port_of: the task of this host on whose port the relay listens.
        heartbeat: seconds after which the connections with a silent host are aborted.
        hosts: the virtual address of each host to the address and port of its relay.
        tasks: each task to its virtual address and port.
        keys: authority, certificate and key, as PEM texts.
        order: the order itself.
    """

    def __init__(self, order: Dict[str, Any]) -> None:
        """Read an order.

        Raises:
            ValueError: a field is missing, has another type or is out of range.
        """
        self.order = order
        self.run = fields.text(order, "run", _LONGEST_NAME)
        self.attempt = fields.integer(order, "attempt", most=2**31)
        self.own = fields.text(order, "own", _LONGEST_NAME)
        self.port_of = fields.text(order, "port_of", _LONGEST_NAME)
        self.heartbeat = fields.number(order, "heartbeat", 0.0, 86400.0)
        self.hosts = _endpoints(order, "hosts")
        self.tasks = _endpoints(order, "tasks")
        self.keys = tuple(fields.text(order, name) for name in _NAMES_OF_KEYS)

    @property
    def own_tasks(self) -> Collection[str]:
        """The tasks of this host."""
        return [task for task, (address, _) in self.tasks.items() if address == self.own]


def _endpoints(order: Mapping[str, Any], name: str) -> Dict[str, Tuple[str, int]]:
    endpoints = {}
    for key, endpoint in fields.mapping(order, name).items():
        if type(endpoint) is not list or len(endpoint) != 2:
            raise ValueError(f"{name!r} must map names to address and port")
        named = {"address": endpoint[0], "port": endpoint[1]}
        endpoints[key] = fields.text(named, "address", _LONGEST_NAME), fields.integer(named, "port", 1, 65535)
    return endpoints


class Frame:
    """The first frame: run, attempt, virtual address of the source host, and target task."""

    def __init__(self, run: str, attempt: int, source: str, target: str) -> None:
        self.run = run
        self.attempt = attempt
        self.source = source
        self.target = target

    def encode(self) -> bytes:
        """Return the bytes that are sent."""
        known = {"run": self.run, "attempt": self.attempt, "from": self.source, "to": self.target}
        text = json.dumps(known).encode("ascii")
        return len(text).to_bytes(HEADER_BYTES, "big") + text


def read_length(header: bytes) -> int:
    """Return the length of a frame after its header.

    Raises:
        ValueError: it is longer than `LONGEST_FRAME`.
    """
    length = int.from_bytes(header, "big")
    if length > LONGEST_FRAME:
        raise ValueError(f"it has {length} bytes, and may have {LONGEST_FRAME}")
    return length


def read_frame(text: bytes) -> Frame:
    """Return the frame in the bytes after the header.

    Raises:
        ValueError: it is malformed.
    """
    message = wire.parse(text)
    if type(message) is not dict or message.keys() != {"run", "attempt", "from", "to"}:
        raise ValueError("it must hold run, attempt, from and to")
    attempt = fields.integer(message, "attempt", most=2**31)
    run, source, target = (fields.text(message, name, _LONGEST_NAME) for name in ("run", "from", "to"))
    return Frame(run, attempt, source, target)


def why_refused(frame: Frame, certified: str, network: Network) -> str:
    """Return why a connection with a certificate for the address ``certified`` is refused, or ""."""
    if frame.source != certified or certified not in network.hosts:
        return "its certificate is for another host than its first frame names"
    if frame.run != network.run:
        return "it belongs to another run"
    if frame.attempt < network.attempt:
        return f"it belongs to attempt {frame.attempt}, and this is attempt {network.attempt}"
    if frame.target != LINK and frame.target not in network.own_tasks:
        return "it is for a task of another host"
    return ""
