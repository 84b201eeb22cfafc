"""Decide the TF_CONFIG of a task, as TensorFlow takes it for strategy and role.

The rules are those of TensorFlow 2.21: ``tfconfig_cluster_resolver.py`` (keys),
``multi_worker_util.py`` (which jobs a cluster may have, and which task leads) and
``parameter_server_strategy_v2.py`` (which jobs that strategy needs).
"""

from collections.abc import Mapping, Sequence

from tflaunch.clusterspec.values import ROLES
from tflaunch_worker import tf_config

_CLUSTER_ROLES = {
    "multi_worker_mirrored": ("chief", "worker"),
    "parameter_server": ("chief", "worker", "ps"),
    "jax": ("worker",),
    "none": ROLES,
}


def has_cluster(strategy: str) -> bool:
    """Whether tasks of this strategy find each other at their addresses.

    MirroredStrategy and TPUStrategy train in one process and must not see a cluster.
    """
    return strategy in _CLUSTER_ROLES


def members(strategy: str) -> tuple[str, ...]:
    """Return the roles that form the cluster of a strategy; () if it has no cluster."""
    return _CLUSTER_ROLES.get(strategy, ())


def visible_roles(strategy: str, role: str) -> list[str] | None:
    """Return the roles in the TF_CONFIG of a role's tasks, None if they have none.

    A MultiWorkerMirrored cluster never contains a ``ps``: TensorFlow would wait for a coordination
    service on ps:0. The evaluator is left out of the others' cluster, where it would be counted and
    waited for; its own TF_CONFIG contains it, because ``worker_count`` looks it up there.
    """
    if not has_cluster(strategy) or role not in ROLES:
        return None
    return [name for name in ROLES if name in members(strategy) or name == role]


def compile_tf_config(strategy: str, addresses: Mapping[str, Sequence[str]], role: str, index: int) -> str | None:
    """Return the TF_CONFIG of a task, or None; arguments as in `tf_config.compose`."""
    roles = visible_roles(strategy, role)
    return None if roles is None else tf_config.compose(addresses, roles, role, index)
