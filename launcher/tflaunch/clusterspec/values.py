"""Spec and plan values without pydantic: addresses, hosts, durations, roles."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Sequence
from ipaddress import IPv6Address
from typing import Literal, NamedTuple, get_args

RoleName = Literal["chief", "worker", "ps", "evaluator"]
ROLES: tuple[str, ...] = get_args(RoleName)

Strategy = Literal["multi_worker_mirrored", "parameter_server", "mirrored", "tpu", "jax", "none"]
STRATEGIES: tuple[str, ...] = get_args(Strategy)

Occasion = Literal["failed", "stalled", "restarted", "waiting", "done"]
OCCASIONS: tuple[Occasion, ...] = get_args(Occasion)

LOCALHOST = "localhost"
EVERY_HOST = "*"
"""The key in ``hosts`` for defaults of all hosts."""

Location = tuple[str | int, ...]
"""The keys and indices that lead to a value in a spec."""

MAX_TASKS = 10_000
MAX_COUNT = 1_000_000
COUNT_FORM = f"a whole number from 0 to {MAX_COUNT}"
_NAME = r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?"
_IPV6 = r"[0-9A-Fa-f:]*:[0-9A-Fa-f:.]*"
BRACKETED_HOST_PATTERN = rf"({_NAME}|\[{_IPV6}\])"
"""A host where a port may follow."""
HOST_PATTERN = rf"({_NAME}|\[{_IPV6}\]|{_IPV6})"

FIRST_PORT = 1024
"""The lowest port that a task can use without privileges; a lower number behind a host is a number of tasks."""
FORMS = "h1, h1:4 or h1 slots=4 for four tasks, h1:2222 for a port"
_SLOTS = re.compile(r"(?P<address>\S+)(?:\s+slots=(?P<slots>\d{1,5}))?(?:\s+max[-_]slots=\d+)?")
_LONGEST_PORT = 6  # digits that suffice to tell a count from a port

_NUMBER = r"[0-9]+(?:\.[0-9]+)?"
_UNIT_SECONDS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
DURATION_PATTERN = _NUMBER + r"|(?=[0-9])" + "".join(rf"(?:({_NUMBER})\s*{unit}\s*)?" for unit in _UNIT_SECONDS)
_A_NUMBER = "for tasks on this machine, write their number alone, without brackets and quotes"
_LONGEST_TEXT = 64  # characters of a duration
_LONGEST = 10 * 365 * 86400.0
_MOST_SHOWN = 60  # characters of a value in a message


class InvalidValueError(ValueError):
    """Error for an invalid value: a sentence without its subject, and the remedy."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(f"{message}; {hint}" if hint else message)
        self.message = message
        self.hint = hint


IN_THAT_FORM = "write it in that form"
"""The remedy of a message that gives an example."""


def must_be(form: str, value: object, hint: str = IN_THAT_FORM) -> InvalidValueError:
    """Return the error for a value that has another form."""
    return InvalidValueError(f"must be {form}, not {show_value(value)}", hint)


class Address(NamedTuple):
    """Address of a task; its host chooses and holds a port at the start if it is None."""

    host: str
    port: int | None

    def __str__(self) -> str:
        return f"{bracketed(self.host)}:{'auto' if self.port is None else self.port}"

    def write_json(self) -> str:
        """Return it as text that `read_json` reads."""
        return str(self)

    @classmethod
    def read_json(cls, name: str, text: object) -> Address:
        """Return the address in the text of a plan's field, or raise ValueError."""
        host, port = split_address(text) if isinstance(text, str) else ("", None)
        if not host or port is None or (port != "auto" and not _is_port(port)):
            raise ValueError(f"field {name!r} must be host:port")
        return cls(host, None if port == "auto" else int(port))


def split_address(text: str) -> tuple[str, str | None]:
    """Split ``host:port`` into host, without IPv6 brackets, and text after the colon."""
    parts = re.fullmatch(r"(?:\[([^][]*:[^][]*)\]|([^:]*))(?::(.*))?", text, re.DOTALL)
    assert parts is not None  # the second alternative takes every text
    return parts[1] or parts[2] or "", parts[3]


def bracketed(host: str) -> str:
    """Return a host as it is written before a port: an IPv6 address in brackets."""
    return f"[{host}]" if ":" in host else host


def parse_address(value: object) -> Address:
    """Parse ``"host:port"`` or ``"host"``; an `Address` is returned unchanged.

    Raises:
        InvalidValueError: the value is not an address that TensorFlow can use.
    """
    if isinstance(value, Address):
        return value
    if not isinstance(value, str):
        is_number = isinstance(value, int) and not isinstance(value, bool)
        remedy = _A_NUMBER if is_number else 'write for example "10.0.0.1:2222"'
        raise must_be('"host:port", or "host" to have the port chosen', value, remedy)
    text = value.strip()
    if "://" in text:
        raise InvalidValueError(f"{show_value(value)} is a URL", 'write "host:port" without a scheme')
    if not text.startswith("[") and text.count(":") > 1:
        remedy = f'write "[{text}]"' if _ipv6(text) else 'write for example "[2001:db8::5]:2222"'
        raise InvalidValueError(f"{show_value(value)} is an IPv6 address without brackets", remedy)
    host, port = split_address(text)
    user, at, name = host.partition("@")
    if at and re.fullmatch(_NAME, name):
        remedy = f'write "{name}" here, and "hosts": {{"{name}": {{"ssh": "{user}@{name}"}}}}'
        raise InvalidValueError(f"{show_value(value)} names no host", remedy)
    remedy = _A_NUMBER if host.isdecimal() else 'write for example "10.0.0.1:2222"'
    host = parse_host(host, remedy, shown=value)
    if port is None:
        return Address(host, None)
    if _is_port(port):
        return Address(host, int(port))
    raise InvalidValueError(f"{show_value(value)} has no valid port", "use 1 to 65535, or no port to have one chosen")


def parse_host(value: object, remedy: str = 'write for example "h1" or "10.0.0.1"', shown: object = None) -> str:
    """Return a host's name or address in its one form, without brackets.

    Raises:
        InvalidValueError: it is neither; the message has ``shown``, by default the value, and the remedy.
    """
    shown = value if shown is None else shown
    text = value[1:-1] if isinstance(value, str) and re.fullmatch(r"\[.*:.*\]", value) else value
    if isinstance(text, str) and re.fullmatch(_NAME, text) and not text.isdecimal():
        return text
    if isinstance(text, str) and ":" in text and "%" in text:
        raise InvalidValueError(
            f"{show_value(shown)} has a zone, which only one host knows", "use an address without %"
        )
    address = _ipv6(text) if isinstance(text, str) else None
    if address is None:
        raise InvalidValueError(f"{show_value(shown)} names no host", remedy)
    return str(address.ipv4_mapped or address)


class HostSlots(NamedTuple):
    """A host, perhaps with a port, and its number of tasks; None if none is written."""

    address: str
    tasks: int | None


def read_host_slots(text: str) -> HostSlots:
    """Return host and number in ``h1``, ``h1:2222``, ``h1:4`` or ``h1 slots=4``.

    Behind ``slots=``, the number is a port, however low it is.

    Raises:
        InvalidValueError: the text has another form, or the host gets no task.
    """
    parts = _SLOTS.fullmatch(text.strip())
    if parts is None:
        raise InvalidValueError(f"{text[:60]!r} names no host", f"write one: {FORMS}")
    address, count = parts["address"], None if parts["slots"] is None else int(parts["slots"])
    host, number = split_address(address)
    if count is None and number is not None and number.isdecimal() and int(number[:_LONGEST_PORT]) < FIRST_PORT:
        address, count = bracketed(host), int(number)
    if count == 0:
        raise InvalidValueError(f"{text[:60]} is a host without a task", "leave it out, or give a number from 1 on")
    return HostSlots(address, count)


def is_ip_address(host: str) -> bool:
    """Whether a host is given by its address, not by a name."""
    return ":" in host or host.replace(".", "").isdigit()


def is_loopback(host: str) -> bool:
    """Whether a host's name or address means this machine, on every machine."""
    return host.lower() in (LOCALHOST, "localhost.localdomain", "::1") or host.startswith("127.")


def _ipv6(text: str) -> IPv6Address | None:
    try:
        return IPv6Address(text)
    except ValueError:
        return None


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 5 and 1 <= int(text) < 1 << 16


def parse_duration(value: object) -> float | None:
    """Return the seconds in a number or a text such as ``1h30m``; None if invalid."""
    seconds = None
    if isinstance(value, int | float) and not isinstance(value, bool):
        seconds = float(value) if 0 <= value <= _LONGEST else None
    elif (
        isinstance(value, str)
        and len(value) <= _LONGEST_TEXT
        and (match := re.fullmatch(DURATION_PATTERN, value.strip()))
    ):
        parts = [float(part) * unit for part, unit in zip(match.groups(), _UNIT_SECONDS.values(), strict=True) if part]
        seconds = sum(parts) if parts else float(value)
    return None if seconds is None or not 0 <= seconds <= _LONGEST else seconds


class WrittenFloat(float):
    """A number that keeps the text in which a file or option has it: 2.20, 1e5."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text

    __str__ = __repr__


def show_value(value: object) -> str:
    """Return a value for display in a sentence: printable, at most 60 characters."""
    try:
        text = json.dumps(value) if value is None or isinstance(value, bool) else repr(value)
    except ValueError:  # Python does not format integers of thousands of digits
        return "a number of thousands of digits"
    return text if len(text) <= _MOST_SHOWN else text[: _MOST_SHOWN - 3] + "..."


def nearest_name(name: str, known: Sequence[str]) -> str | None:
    """Return the known name that a misspelled one probably means, or None."""
    matches = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.6)
    return matches[0] if matches else None


def format_place(location: Location) -> str:
    """Return a location as text, such as ``cluster.worker[1]``."""
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text
