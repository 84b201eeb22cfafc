"""Resolve the hosts of a job at its start: query engines, complete the spec."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from tflaunch.clusterspec.host_slots import FORMS, read_host_slots
from tflaunch.clusterspec.model import Spec
from tflaunch.clusterspec.values import MAX_TASKS, Address, InvalidValueError, parse_address
from tflaunch.discovery import base
from tflaunch.discovery.base import NotFoundError
from tflaunch.errors import Problem, SpecError
from tflaunch.plan import placement

_POOL = "hosts.discover"


class Pool(NamedTuple):
    """Hosts, one address per task; ``engine``: see `placement.of_engine`; None: SSH."""

    slots: tuple[Address, ...]
    engine: str | None
    inherits: bool


def with_hosts(source: str, spec: Spec, directory: Path) -> Spec:
    """Return the spec with the hosts that its engines have found in its ``cluster``.

    Args:
        source: the spec's name in messages.
        spec: a spec.
        directory: the directory of its file.

    Raises:
        SpecError: hosts cannot be found.
    """
    problems = _conflicts(spec)

    def found(where: str, place: str, put: Callable[[Spec, Pool], Spec]) -> None:
        nonlocal spec
        try:
            pool = search(where, directory)
            spec = reached(put(spec, pool), pool)
        except NotFoundError as error:
            problems.append(Problem("error", place, str(error), error.hint))

    for role, where in spec.discover.items():
        if role not in spec.cluster:
            found(where, f"discover.{role}", partial(_with_role, role))
    if spec.pool is not None:
        found(spec.pool, _POOL, _spread)
    if problems:
        raise SpecError(source, problems)
    return spec.model_copy(update={"discover": {}, "pool": None})


def assumed(source: str, spec: Spec) -> Spec:
    """Return the spec as if each engine had found one host, to inspect it offline.

    Raises:
        SpecError: an engine does not exist.
    """
    problems = _conflicts(spec)
    places = {f"discover.{role}": where for role, where in spec.discover.items()}
    if spec.pool is not None:
        places[_POOL] = spec.pool
    for place, where in places.items():
        try:
            base.find_engine(base.split_source(where)[0])
        except NotFoundError as error:
            problems.append(Problem("error", place, str(error), error.hint))
    if problems:
        raise SpecError(source, problems)
    found = {role: (Address(f"discovered-{role}", None),) for role in spec.discover}
    if spec.pool is not None:
        spares = [f"discovered-spare-{n}" for n in range(spec.spares)] if isinstance(spec.spares, int) else []
        spec = placement.spread_with_spares(spec, ["discovered", *spares])
    return spec.model_copy(update={"cluster": {**found, **spec.cluster}, "discover": {}, "pool": None})


def _conflicts(spec: Spec) -> list[Problem]:
    return [
        Problem("error", f"discover.{role}", "has its hosts in cluster already", "remove it here or there")
        for role in spec.discover
        if role in spec.cluster
    ]


def _spread(spec: Spec, pool: Pool) -> Spec:
    """Spread the tasks over the hosts; a number of spare hosts is taken from the end."""
    slots = [address.host for address in pool.slots]
    count = len(set(slots))
    if isinstance(spec.spares, int) and spec.spares >= count > 0:
        message = f"{count} of them leave no host for tasks beside {spec.spares} spare ones"
        raise NotFoundError(message, "find more hosts, or use fewer spares")
    return placement.spread_with_spares(spec, slots)


def _with_role(role: str, spec: Spec, pool: Pool) -> Spec:
    return spec.model_copy(update={"cluster": {**spec.cluster, role: pool.slots}})


def reached(spec: Spec, pool: Pool) -> Spec:
    """Return the spec with the hosts of a pool reached by their engine."""
    if pool.engine is None:
        return spec
    return placement.of_engine(spec, (address.host for address in pool.slots), pool.engine, pool.inherits)


def search(where: str, directory: Path) -> Pool:
    """Return the hosts that an engine finds.

    Raises:
        NotFoundError: there are none; says why.
    """
    name, rest = base.split_source(where)
    engine = base.find_engine(name)
    lines, handle = engine.find(rest, directory)
    addresses = (address for number, line in enumerate(lines, 1) for address in _on_line(line, number))
    slots = tuple(itertools.islice(addresses, MAX_TASKS + 1))
    if not slots:
        raise NotFoundError(f"{where!r} names no host", f"one host per line: {FORMS}")
    if len(slots) > MAX_TASKS:
        raise NotFoundError(f"{where!r} names more than {MAX_TASKS} tasks", f"name at most {MAX_TASKS}")
    is_reached = engine.words(slots[0].host, handle) is not None
    return Pool(slots, f"{name}:{handle}" if is_reached else None, engine.inherits)


def _on_line(line: str, number: int) -> list[Address]:
    """Parse a line of a host list into one address per task; empty without a host."""
    text = line.partition("#")[0].strip()
    if not text:
        return []
    try:
        host = read_host_slots(text)
        address = parse_address(host.address)
    except InvalidValueError as error:
        raise NotFoundError(f"line {number}: {error.message}", error.hint) from None
    return [address] * min(host.tasks or 1, MAX_TASKS + 1)
