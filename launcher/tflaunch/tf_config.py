"""The TF_CONFIG of a task: exactly what TensorFlow accepts for its strategy and role.

The rules are those of TensorFlow 2.21: ``tfconfig_cluster_resolver.py`` (keys),
``multi_worker_util.py`` (which jobs a cluster may have, who leads) and
``parameter_server_strategy_v2.py`` (which jobs that strategy needs).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from tflaunch.spec import ROLES

_CLUSTER_ROLES = {
    "multi_worker_mirrored": ("chief", "worker"),
    "parameter_server": ("chief", "worker", "ps"),
    "none": ROLES,
}


def has_cluster(strategy: str) -> bool:
    """Whether tasks of this strategy find each other through TF_CONFIG.

    MirroredStrategy and TPUStrategy train in one process and must not see a cluster.
    """
    return strategy in _CLUSTER_ROLES


def members(strategy: str) -> tuple[str, ...]:
    """Return the roles that form the cluster of a strategy, none when it has no cluster."""
    return _CLUSTER_ROLES.get(strategy, ())


def compile_tf_config(strategy: str, addresses: Mapping[str, Sequence[str]], role: str, index: int) -> str | None:
    """Return the TF_CONFIG of one task as compact JSON, None when it must not have one.

    A ``ps`` never stands in a MultiWorkerMirrored cluster: TensorFlow would wait for a coordination
    service on ps:0. The evaluator takes no part in the others' cluster (it would be counted and
    waited for); its own TF_CONFIG names it, because ``worker_count`` looks it up there.

    Args:
        strategy: a strategy of the spec.
        addresses: role to the ``host:port`` of its tasks, in the order of their index.
        role: the task's role.
        index: the task's index within its role.
    """
    if not has_cluster(strategy):
        return None
    inside = members(strategy)
    cluster = {name: list(addresses[name]) for name in ROLES if name in addresses and (name in inside or name == role)}
    config = {"cluster": cluster, "task": {"type": role, "index": index}}
    return json.dumps(config, separators=(",", ":"))
