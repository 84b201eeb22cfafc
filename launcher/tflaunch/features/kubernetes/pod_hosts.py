"""Pods as the hosts of tasks."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from tflaunch.clusterspec.model import Spec
from tflaunch.errors import Problem
from tflaunch.features.kubernetes import pods
from tflaunch.features.kubernetes.cluster import cluster_of
from tflaunch.plan.host_maker import HostMaker
from tflaunch.plan.model import Plan, is_made


class PodHosts(HostMaker):
    """Makes a pod for each task."""

    def find_problems(self, spec: Spec) -> list[Problem]:
        """Return what keeps the tasks of a spec from running in pods."""
        return list(pods.problems(spec))

    def place_tasks(self, spec: Spec) -> Spec:
        """Return the spec with a pod as the host of every task and sidecar."""
        return pods.placed(spec)

    def plan_hosts(self, spec: Spec, plan: Plan) -> Plan:
        """Return the plan with the objects from which Kubernetes makes the pods of its processes."""
        return pods.with_cluster(spec, plan)

    def require_permissions(self, plan: Plan) -> None:
        """Raise a `TflaunchError` if this user may not create pods."""
        from tflaunch.features.kubernetes import cluster_objects

        cluster_objects.require_permissions(cluster_of(plan))

    def create_hosts(self, plan: Plan, run: str) -> Plan:
        """Create these objects, unless another process does.

        Raises:
            TflaunchError: Kubernetes cannot be reached, or refuses them.
        """
        from tflaunch.features.kubernetes import cluster_objects

        is_ours = cluster_of(plan).objects
        return cluster_objects.create(plan, run) if is_ours else plan

    def deleted_after(self, plan: Plan, run: str, say: Callable[[str], None]) -> AbstractContextManager[None]:
        """Delete these objects on exit."""
        from tflaunch.features.kubernetes import cluster_objects

        return cluster_objects.deleted_after(cluster_of(plan), run, say)

    def connectors_for(self, plan: Plan, run: str) -> dict[str, Any]:
        """Return the connector of each pod."""
        from tflaunch.features.kubernetes.pod_connectors import PodConnectors

        hosts = [host for host in plan.hosts if is_made(host.engine)]
        connectors = PodConnectors(cluster_of(plan), run, hosts, plan.timeouts.connect)
        return {host.host: connectors.connector_to(host) for host in hosts}
