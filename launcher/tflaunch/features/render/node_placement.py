"""Assign the tasks of a spec to the nodes of a scheduler. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tflaunch.clusterspec.model import Spec
from tflaunch.clusterspec.values import EVERY_HOST, LOCALHOST, Address
from tflaunch.plan import placement

_NOWHERE = Address(LOCALHOST, None)


def nodes_wanted(spec: Spec) -> int:
    """Return a spec's scheduler nodes: one per named host, or ``nodes`` of ``slurm``."""
    asked = spec.slurm.get("nodes", "").partition("-")[0]
    return (
        int(asked) if asked.isdecimal() and int(asked) and _has_counts_only(spec) else len(placement.named_hosts(spec))
    )


def onto(spec: Spec, nodes: Sequence[str]) -> Spec:
    """Return the spec with its tasks placed on the nodes of a scheduler.

    Tasks given only as counts are spread; otherwise the nodes replace the named hosts in order. Of the hosts' settings
    only ``env`` and ``gpus`` are kept, and a sidecar without a host of the cluster goes to the first node.

    Args:
        spec: a spec.
        nodes: names of nodes, at least as many as the spec names hosts.
    """
    if _has_counts_only(spec) and len(nodes) > 1:
        sidecars = {name: sidecar.model_copy(update={"host": nodes[0]}) for name, sidecar in spec.sidecars.items()}
        return placement.spread(spec, nodes).model_copy(update={"sidecars": sidecars})
    names = dict(zip(placement.named_hosts(spec), nodes, strict=False))
    return _renamed(spec, names, nodes[0])


def _has_counts_only(spec: Spec) -> bool:
    """Whether all tasks are given as counts, without a host or port."""
    return all(address == _NOWHERE for addresses in spec.cluster.values() for address in addresses)


def _renamed(spec: Spec, names: Mapping[str, str], first: str) -> Spec:
    cluster = {
        role: tuple(Address(names[address.host], address.port) for address in addresses)
        for role, addresses in spec.cluster.items()
    }
    sidecars = {
        name: sidecar.model_copy(update={"host": names.get(sidecar.host, first)})
        for name, sidecar in spec.sidecars.items()
    }
    hosts = {
        names.get(host, host): settings.only("env", "gpus")
        for host, settings in spec.hosts.items()
        if host in names or host == EVERY_HOST
    }
    return spec.model_copy(update={"cluster": cluster, "sidecars": sidecars, "hosts": hosts})
