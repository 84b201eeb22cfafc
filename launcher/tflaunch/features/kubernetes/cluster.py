"""The part of a plan on its cluster and the objects that make its pods. Pure."""

from __future__ import annotations

from typing import NamedTuple

from tflaunch import records
from tflaunch.plan.model import MadeHosts, Plan, Seconds

NAME = "kubernetes"
"""The engine of hosts that are pods, and the field of specs for them."""

POD_CONTAINER = "tensorflow"
"""The container of a pod in which its task runs."""


class KubernetesPlan(NamedTuple):
    """A plan's cluster, whose pods are its hosts, and the objects that make them.

    ``name`` is that of the Service that owns the others; ``objects`` is their JSON, "" if they exist; ``pending``: the
    limit for a pod to run, in seconds. ``context``, ``namespace`` and ``config`` (KUBECONFIG) are for kubectl, None for
    its default. Of a supervisor in the cluster: ``launcher`` is the image, ``run_volume`` the PersistentVolumeClaim
    with its run directories, if there is one, and ``keep`` how long its pod keeps the directory of a run that has
    ended, in seconds.
    """

    name: str
    objects: str
    pending: Seconds
    context: str | None = None
    namespace: str | None = None
    config: str | None = None
    launcher: str | None = None
    run_volume: str | None = None
    keep: Seconds = 0.0

    def command(self, *arguments: str) -> list[str]:
        """Return the argv of a kubectl command for this cluster and namespace."""
        argv = [] if self.config is None else ["env", f"KUBECONFIG={self.config}"]
        argv.append("kubectl")
        argv += [] if self.context is None else [f"--context={self.context}"]
        argv += [] if self.namespace is None else [f"--namespace={self.namespace}"]
        return [*argv, *arguments]


def cluster_of(plan: Plan) -> KubernetesPlan:
    """Return the cluster of a plan whose hosts are pods."""
    assert plan.made_hosts is not None
    return records.read_record(KubernetesPlan, plan.made_hosts.data)._replace(pending=plan.made_hosts.limit)


def made_in(cluster: KubernetesPlan) -> MadeHosts:
    """Read the part of a plan about hosts that are pods."""
    forward = tuple(cluster.command("port-forward"))
    return MadeHosts(NAME, records.as_json(cluster), cluster.pending, forward, by_another=not cluster.objects)
