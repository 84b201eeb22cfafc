"""What is wrong with a private network in a spec."""

from collections.abc import Iterator
from pathlib import Path

from tflaunch.clusterspec.model import Spec
from tflaunch.errors import Problem
from tflaunch.plan import placement
from tflaunch.plan.model import PRIVATE


def find_problems(spec: Spec, directory: Path) -> Iterator[Problem]:
    """Yield the problem of tasks that are not on one host."""
    hosts = placement.all_hosts(spec) if spec.network == PRIVATE else []
    if len(hosts) > 1:
        message = f'"private" is for a job on one host, and this one has {hosts[1]} beside {hosts[0]}'
        hint = 'write "fenced", with WireGuard between the hosts against who listens on the wire, a NetworkPolicy on'
        hint += " Kubernetes against other pods, and nodes of your own (Slurm: --exclusive) against other users of them"
        yield Problem.error("network", message, hint)
