"""Preflight: which peers each host probes and looks up. Pure."""

from collections.abc import Collection, Mapping, Sequence

from tflaunch.clusterspec.values import is_ip_address, is_loopback
from tflaunch.core.actions import ProbePeers
from tflaunch.core.policy import forms_cluster
from tflaunch.plan.model import Plan
from tflaunch.plan.tf_config import members

MOST_PEERS = 64
"""Maximum number of peers that a host probes.

Without a limit, N hosts would open N times N connections at the same time.
"""


def peers_to_try(plan: Plan, spares: Collection[str] = ()) -> dict[str, ProbePeers]:
    """Return the tasks that each host has to probe before the first start.

    A host probes all other hosts, or a sample of them (see `MOST_PEERS`), and so do spare hosts.
    """
    inside = _inside(plan)
    if not plan.preflight or not forms_cluster(plan) or len(inside) < 2:
        return {}
    wanted, ring = {}, tuple(inside)
    for number, host in enumerate([*inside, *spares]):
        own = {task: port for task, (_, port) in inside.get(host, {}).items()}
        others = {task: address for peer in _peers_of(host, number, ring) for task, address in inside[peer].items()}
        wanted[host] = ProbePeers(host, own, others)
    return wanted


def names_to_find(plan: Plan, hosts: Collection[str], spares: Collection[str] = ()) -> dict[str, tuple[str, ...]]:
    """Return the names of peers that each of these hosts has to resolve.

    Hosts also resolve the names of spare hosts, and these those of the others.
    """
    if not forms_cluster(plan):
        return {}
    inside, there = _inside(plan), frozenset(hosts)
    wanted, ring = {}, tuple(inside)
    own = {spare: plan.host(spare).outer_address for spare in spares}
    for number, host in enumerate(dict.fromkeys([*inside, *(task.host for task in plan.tasks), *spares])):
        if host not in there and host not in own:
            continue
        others = {name for peer in _peers_of(host, number, ring) for name, _ in inside[peer].values()}
        others |= {name for spare, name in own.items() if spare != host}
        names = tuple(sorted(name for name in others if not is_ip_address(name)))
        if names:
            wanted[host] = names
    return wanted


def names_of(plan: Plan) -> set[str]:
    """Return the names and addresses by which the tasks of the cluster are reached."""
    return {name for tasks in _inside(plan).values() for name, _ in tasks.values()}


def _inside(plan: Plan) -> dict[str, dict[str, tuple[str, int]]]:
    """Return each host's tasks in the cluster, with host and port."""
    inside: dict[str, dict[str, tuple[str, int]]] = {}
    roles = members(plan.strategy)
    for task in plan.tasks:
        if task.address is not None and task.role in roles:
            inside.setdefault(task.host, {})[task.task] = task.address.host, task.address.port or 0
    return inside


def _peers_of(host: str, number: int, ring: Sequence[str]) -> list[str]:
    """Return the peers of a host in a ring: all, or `MOST_PEERS` and the first host.

    All tasks need the leader on the first host. The others are spread evenly from the next host on, so that each host
    is probed equally often and a block between two parts of a network is found.
    """
    count = len(ring)
    if count - 1 <= MOST_PEERS:
        return [peer for peer in ring if peer != host]
    steps = (1 + step * (count - 1) // MOST_PEERS for step in range(MOST_PEERS))
    chosen = dict.fromkeys([ring[0], *(ring[(number + step) % count] for step in steps)])
    return [peer for peer in chosen if peer != host]


def name_remedy(problem: str) -> str:
    """Return the remedy for a problem with names, as `name_problems` returns it."""
    name = problem.partition(" name '")[2].partition("'")[0]
    return (
        f'use addresses in cluster, set "hosts": {{"{name}": {{"address": "10.0.0.5"}}}}, or correct /etc/hosts there'
    )


def name_problems(host: str, names: Mapping[str, str]) -> list[str]:
    """Return a sentence for each name that does not resolve, or to loopback."""
    problems = []
    for name, addresses in names.items():
        loopback = [address for address in addresses.split() if is_loopback(address)]
        if not addresses:
            problems.append(f"{host} does not know the name {name!r}")
        elif loopback:
            problems.append(f"on {host} the name {name!r} means {loopback[0]}, which is {host} itself")
    return problems
