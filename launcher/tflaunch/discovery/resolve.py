"""Resolve the hosts of a job at its start: query engines, complete the spec."""

import itertools
from pathlib import Path
from typing import NamedTuple

from tflaunch.clusterspec.model import Host, Spec
from tflaunch.clusterspec.values import FORMS, MAX_TASKS, Address, InvalidValueError, parse_address, read_host_slots
from tflaunch.discovery import base
from tflaunch.discovery.base import NotFoundError
from tflaunch.errors import Problem, SpecError
from tflaunch.plan import placement


class Pool(NamedTuple):
    """Hosts, one address per task; ``engine`` reaches them, as NAME:HANDLE; None: SSH."""

    slots: tuple[Address, ...]
    engine: str | None
    inherits: bool


def with_hosts(source: str, spec: Spec, directory: Path, *, is_offline: bool = False) -> Spec:
    """Return the spec with the hosts that its engines have found in its ``cluster``.

    ``source`` is its name in messages, and ``directory`` that of its file. With ``is_offline``, each engine is taken to
    have found one host, and is not asked.

    Raises:
        SpecError: hosts cannot be found, or an engine does not exist.
    """
    problems = []
    for role, where in [*spec.discover.items(), *([] if spec.pool is None else [("", spec.pool)])]:
        place = f"discover.{role}" if role else "hosts.discover"
        if role and role in spec.cluster:
            problems.append(Problem.error(place, "has its hosts in cluster already", "remove it here or there"))
            continue
        try:
            pool = _assume(where, role, spec) if is_offline else search(where, directory)
            spec = reached(_placed(spec, role, pool), pool)
        except NotFoundError as error:
            problems.append(Problem.error(place, str(error), error.hint))
    if problems:
        raise SpecError(source, problems)
    return spec.model_copy(update={"discover": {}, "pool": None})


def _assume(where: str, role: str, spec: Spec) -> Pool:
    """Return one host for a role or for the whole cluster, which has spare hosts, too."""
    base.find_engine(where.partition(":")[0])
    spares = [f"discovered-spare-{n}" for n in range(spec.spares)] if isinstance(spec.spares, int) and not role else []
    names = [f"discovered-{role}" if role else "discovered", *spares]
    return Pool(tuple(Address(name, None) for name in names), None, inherits=False)


def _placed(spec: Spec, role: str, pool: Pool) -> Spec:
    """Place the tasks of a role, or of all; spare hosts are taken from the end."""
    if role:
        return spec.model_copy(update={"cluster": {**spec.cluster, role: pool.slots}})
    slots = [address.host for address in pool.slots]
    count = len(set(slots))
    if isinstance(spec.spares, int) and spec.spares >= count > 0:
        message = f"{count} of them leave no host for tasks beside {spec.spares} spare ones"
        raise NotFoundError(message, "find more hosts, or use fewer spares")
    return placement.spread_with_spares(spec, slots)


def reached(spec: Spec, pool: Pool) -> Spec:
    """Return the spec with the hosts of a pool reached by their engine."""
    if pool.engine is None:
        return spec
    reach = {"engine": pool.engine, "inherits": pool.inherits}
    hosts = dict.fromkeys(address.host for address in pool.slots)
    settings = {host: (spec.hosts.get(host) or Host()).model_copy(update=reach) for host in hosts}
    return spec.model_copy(update={"hosts": {**spec.hosts, **settings}})


def search(where: str, directory: Path) -> Pool:
    """Return the hosts that an engine finds, or raise `NotFoundError` with the reason."""
    name, _, rest = where.partition(":")
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
