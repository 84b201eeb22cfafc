"""Assign the tasks of a spec to hosts. Pure."""

from collections.abc import Sequence

from tflaunch.clusterspec.model import Spec
from tflaunch.clusterspec.values import EVERY_HOST, LOCALHOST, ROLES, Address

_NOWHERE = Address(LOCALHOST, None)


def named_hosts(spec: Spec) -> list[str]:
    """Return the hosts of the cluster, ordered by role and then as in the spec."""
    return list(dict.fromkeys(address.host for role in ROLES for address in spec.cluster.get(role, ())))


def hosts_with_tasks(spec: Spec) -> set[str]:
    """Return the hosts on which a task or sidecar starts."""
    return {*named_hosts(spec), *(sidecar.host for sidecar in spec.sidecars.values())}


def all_hosts(spec: Spec) -> list[str]:
    """Return the hosts of tasks, of sidecars and without tasks, in this order."""
    sidecars = [sidecar.host for sidecar in spec.sidecars.values()]
    return list(dict.fromkeys([*named_hosts(spec), *sidecars, *spare_hosts(spec)]))


def spare_hosts(spec: Spec) -> tuple[str, ...]:
    """Return the spare hosts of a spec; a number means the last ones in ``hosts``."""
    if not isinstance(spec.spares, int):
        return spec.spares
    listed = [host for host in spec.hosts if host != EVERY_HOST]
    return tuple(listed[-spec.spares :]) if spec.spares else ()


def spread_with_spares(spec: Spec, slots: Sequence[str]) -> Spec:
    """Return the spec spread over the slots but its spare hosts, which it then names."""
    distinct = list(dict.fromkeys(slots))
    spares = spec.spares
    if isinstance(spares, int):
        spares = tuple(distinct[max(len(distinct) - spares, 1) :]) if spares else ()
    rest = [host for host in slots if host not in spares]
    return spread(spec, rest or slots).model_copy(update={"spares": spares})


def spread(spec: Spec, slots: Sequence[str]) -> Spec:
    """Return the spec with hosts for the tasks that have none.

    Ordered by role and index, the tasks are divided among the hosts in contiguous blocks of nearly equal size; with
    at least as many hosts as tasks, each task gets its own host. A host that is listed twice in ``slots`` gets twice as
    many tasks as the others.
    """
    total = sum(addresses.count(_NOWHERE) for addresses in spec.cluster.values())
    distinct = list(dict.fromkeys(slots))
    chosen = distinct[:total] if total <= len(distinct) else slots
    hosts = iter(chosen[number * len(chosen) // total] for number in range(total))
    in_order = sorted(spec.cluster, key=lambda role: ROLES.index(role) if role in ROLES else len(ROLES))
    cluster = {
        role: tuple(Address(next(hosts), None) if each == _NOWHERE else each for each in spec.cluster[role])
        for role in in_order
    }
    return spec.model_copy(update={"cluster": {role: cluster[role] for role in spec.cluster}})
