"""Finding the hosts of a role when a job starts: by DNS, in a file, or from a command."""

from __future__ import annotations

import ipaddress
import re
import shlex
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tflaunch.errors import Problem, SpecError
from tflaunch.spec import MAX_TASKS, Address, Spec, read_address

_PATIENCE = 30.0  # seconds for a command
_MOST_BYTES = 1024 * 1024
_LINE = re.compile(r"(?P<address>\S+)(?:\s+slots=(?P<slots>\d{1,5}))?")


class _NotFound(Exception):
    """Why there are no hosts, and what to do about it."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


def with_hosts(source: str, spec: Spec, directory: Path) -> Spec:
    """Return the spec with the hosts of its ``discover`` in its ``cluster``.

    Args:
        source: what the spec is called in messages.
        spec: a spec.
        directory: where its file is; files are looked for and commands run there.

    Raises:
        SpecError: hosts cannot be found.
    """
    if not spec.discover:
        return spec
    cluster: Mapping[str, tuple[Address, ...]] = spec.cluster
    problems = []
    for role, where in spec.discover.items():
        place = f"discover.{role}"
        if role in cluster:
            problems.append(Problem("error", place, "has its hosts in cluster already", "remove it here or there"))
            continue
        try:
            cluster = {**cluster, role: _discover(where, directory)}
        except _NotFound as error:
            problems.append(Problem("error", place, str(error), error.hint))
    if problems:
        raise SpecError(source, problems)
    return spec._replace(cluster=cluster, discover={})


def assumed(spec: Spec) -> Spec:
    """Return the spec as if each role of its ``discover`` had found one host: for looking at it without the network."""
    found = {role: (Address(f"discovered-{role}", None),) for role in spec.discover}
    return spec._replace(cluster={**found, **spec.cluster}, discover={})


def _discover(where: str, directory: Path) -> tuple[Address, ...]:
    kind, _, rest = where.partition(":")
    if kind == "dns":
        return _by_dns(rest)
    lines = _file_lines(directory / rest) if kind == "file" else _command_lines(rest, directory)
    found = [address for number, line in enumerate(lines, 1) for address in _on_line(line, number)]
    if not found:
        raise _NotFound(f"{where!r} names no host", "one host per line: h1, h1:2222 or h1 slots=2")
    if len(found) > MAX_TASKS:
        raise _NotFound(f"{where!r} names {len(found)} tasks", f"name at most {MAX_TASKS}")
    return tuple(found)


def _by_dns(name: str) -> tuple[Address, ...]:
    """One task per address of a name, as a service of docker-compose or a headless one of Kubernetes has them."""
    host, colon, port = name.partition(":")
    try:
        found = socket.getaddrinfo(host, None, socket.AF_INET, socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise _NotFound(f"DNS knows no {host!r}: {reason}", "start its service first, or correct the name") from None
    addresses = sorted({str(entry[4][0]) for entry in found}, key=ipaddress.IPv4Address)
    return tuple(_address(f"{address}:{port}" if colon else address, name) for address in addresses)


def _file_lines(path: Path) -> list[str]:
    try:
        with path.open("rb") as file:
            return file.read(_MOST_BYTES).decode("utf-8", "replace").splitlines()
    except OSError as error:
        raise _NotFound(f"{path} cannot be read: {error.strerror}", "write one host per line into it") from None


def _command_lines(command: str, directory: Path) -> list[str]:
    try:
        argv = shlex.split(command)
        done = subprocess.run(
            argv, cwd=directory, stdin=subprocess.DEVNULL, capture_output=True, timeout=_PATIENCE, check=False
        )
    except (OSError, ValueError, IndexError) as error:
        raise _NotFound(f"{command!r} cannot be run: {error}", "give a program that prints one host per line") from None
    except subprocess.TimeoutExpired:
        raise _NotFound(f"{command!r} did not end within {_PATIENCE:g} s", "let it print hosts and end") from None
    if done.returncode != 0:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        words = f": {said[-1]}" if said else ""
        raise _NotFound(f"{command!r} ended with code {done.returncode}{words}", "let it print hosts and end with 0")
    return done.stdout[:_MOST_BYTES].decode("utf-8", "replace").splitlines()


def _on_line(line: str, number: int) -> list[Address]:
    """The tasks that a line of a list stands for: none for an empty one or a comment."""
    text = line.partition("#")[0].strip()
    if not text:
        return []
    parts = _LINE.fullmatch(text)
    if parts is None:
        raise _NotFound(f"line {number} is {text[:60]!r}", "write one host per line: h1, h1:2222 or h1 slots=2")
    slots = int(parts["slots"] or 1)
    return [_address(parts["address"], f"line {number}")] * min(slots, MAX_TASKS + 1)


def _address(text: str, place: str) -> Address:
    address = read_address(text)
    if isinstance(address, Problem):
        raise _NotFound(f"{place}: {address.message}", address.hint)
    return address
