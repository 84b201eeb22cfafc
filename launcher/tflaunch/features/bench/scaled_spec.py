"""Change a spec to another number of workers, as `tflaunch bench` runs it. Pure."""

from __future__ import annotations

from collections.abc import Collection

from tflaunch.clusterspec.model import Restart, Spec
from tflaunch.clusterspec.values import EVERY_HOST, LOCALHOST, Address
from tflaunch.errors import Problem, SpecError

_LEFT_OUT = {
    "restart": Restart(max=0),
    "notify": None,
    "collect": (),
    "checkpoints": None,
    "elastic": None,
    "spares": 0,
    "tensorboard": None,
}
"""What concerns a run as a whole, and not its speed."""


def with_workers(source: str, spec: Spec, count: int, local_names: Collection[str]) -> Spec:
    """Return the spec with ``count`` workers.

    They are its first ones, and more of them only if all are on this machine.

    The job's name gets the number of workers; restarts, a deadline, copies of files and the like are left out.

    Args:
        source: the origin of the spec, for messages.
        spec: the spec.
        count: number of workers, including a chief that trains.
        local_names: the names of hosts that are this machine.

    Raises:
        SpecError: there are not that many workers, or none.
    """
    if "worker" not in spec.cluster and not _chiefs(spec):
        message = "has no worker, whose number could change"
        raise SpecError(source, [Problem("error", "cluster", message, 'write for example "worker": 2')])
    workers, wanted = spec.cluster.get("worker", ()), count - _chiefs(spec)
    if wanted > len(workers):
        trainers = (*spec.cluster["chief"], *workers) if _chiefs(spec) else workers
        if not all(address.host in local_names for address in trainers):
            message = f"has {len(trainers)} of the {count} workers of --workers"
            hint = f"measure at most {len(trainers)}, or name more hosts; only local workers can be added"
            raise SpecError(source, [Problem("error", "cluster.worker", message, hint)])
        host = trainers[-1].host if trainers else LOCALHOST
        workers = (*workers, *[Address(host, None)] * (wanted - len(workers)))
    cluster = {role: each for role, each in {**spec.cluster, "worker": workers[:wanted]}.items() if each}
    used = {address.host for addresses in cluster.values() for address in addresses} | {EVERY_HOST}
    used |= {sidecar.host for sidecar in spec.sidecars.values()}
    return spec.model_copy(
        update={
            **_LEFT_OUT,
            "name": f"{spec.name[:50]}-{count}w",
            "cluster": cluster,
            "hosts": {name: host for name, host in spec.hosts.items() if name in used},
            "timeouts": spec.timeouts.model_copy(update={"deadline": None}),
        }
    )


def _chiefs(spec: Spec) -> int:
    """Return the number of chiefs that train: all, unless there are parameter servers."""
    return 0 if spec.effective_strategy() == "parameter_server" else len(spec.cluster.get("chief", ()))
