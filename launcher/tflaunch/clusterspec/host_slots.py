"""Hosts with task counts in the notation of mpirun and Horovod (options, lists)."""

import re
from typing import NamedTuple

from tflaunch.clusterspec.values import InvalidValueError, bracketed, split_address

FIRST_PORT = 1024
"""The lowest port that a task can use without privileges; a lower number behind a host is a number of tasks."""
FORMS = "h1, h1:4 or h1 slots=4 for four tasks, h1:2222 for a port"

_LINE = re.compile(r"(?P<address>\S+)(?:\s+slots=(?P<slots>\d{1,5}))?(?:\s+max[-_]slots=\d+)?")
_LONGEST_PORT = 6  # digits that suffice to tell a count from a port


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
    parts = _LINE.fullmatch(text.strip())
    if parts is None:
        raise InvalidValueError(f"{text[:60]!r} names no host", f"write one: {FORMS}")
    address, count = parts["address"], None if parts["slots"] is None else int(parts["slots"])
    host, number = split_address(address)
    if count is None and number is not None and number.isdecimal() and int(number[:_LONGEST_PORT]) < FIRST_PORT:
        address, count = bracketed(host), int(number)
    if count == 0:
        raise InvalidValueError(f"{text[:60]} is a host without a task", "leave it out, or give a number from 1 on")
    return HostSlots(address, count)
