"""Compose the TF_CONFIG of a task, exactly as TensorFlow accepts it for the strategy and role.

The rules are those of TensorFlow 2.21: ``tfconfig_cluster_resolver.py`` (keys),
``multi_worker_util.py`` (which jobs a cluster may have, and which task leads) and
``parameter_server_strategy_v2.py`` (which jobs that strategy needs).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

from tflaunch.clusterspec.values import ROLES

NAME = "TF_CONFIG"
"""Name of the environment variable."""

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
    """Return the roles that form the cluster of a strategy; () if it has no cluster."""
    return _CLUSTER_ROLES.get(strategy, ())


def compile_tf_config(strategy: str, addresses: Mapping[str, Sequence[str]], role: str, index: int) -> str | None:
    """Return the TF_CONFIG of one task as compact JSON, None if it must not have one.

    Args:
        strategy: a strategy of the spec.
        addresses: role to the ``host:port`` of its tasks, in the order of their index.
        role: the task's role.
        index: the task's index within its role.
    """
    common = common_part(strategy, addresses, role)
    return None if common is None else common + _own_part(role, index)


def common_part(strategy: str, addresses: Mapping[str, Sequence[str]], role: str) -> str | None:
    """Return the first part of a role's TF_CONFIG, the cluster; None if its tasks must not have one.

    A MultiWorkerMirrored cluster never contains a ``ps``: TensorFlow would wait for a coordination
    service on ps:0. The evaluator is left out of the others' cluster, where it would be counted and
    waited for; its own TF_CONFIG contains it, because ``worker_count`` looks it up there.

    Args:
        strategy: a strategy of the spec.
        addresses: role to the ``host:port`` of its tasks, in the order of their index.
        role: the role.
    """
    if not has_cluster(strategy):
        return None
    inside = members(strategy)
    cluster = {name: list(addresses[name]) for name in ROLES if name in addresses and (name in inside or name == role)}
    return '{"cluster":' + json.dumps(cluster, separators=(",", ":")) + ","


def _own_part(role: str, index: int) -> str:
    """Return the last part of a task's TF_CONFIG, its role and index."""
    return '"task":' + json.dumps({"type": role, "index": index}, separators=(",", ":")) + "}"


class WithTfConfig(Mapping[str, str]):
    """Environment of a task whose TF_CONFIG is composed on access.

    Each of N tasks needs the addresses of all, so storing every TF_CONFIG would take N times N addresses.
    """

    __slots__ = ("_role_and_index", "common", "rest")

    def __init__(self, rest: Mapping[str, str], common: str, role: str, index: int) -> None:
        """Add TF_CONFIG to the ``rest`` of an environment; ``common`` is the role's `common_part`."""
        self.rest = rest
        self.common = common
        self._role_and_index = role, index

    def with_common(self, common: str) -> WithTfConfig:
        """Return the environment with another common part."""
        return WithTfConfig(self.rest, common, *self._role_and_index)

    def with_rest(self, rest: Mapping[str, str]) -> WithTfConfig:
        """Return the environment with another ``rest``."""
        return WithTfConfig(rest, self.common, *self._role_and_index)

    def __getitem__(self, name: str) -> str:
        return self.common + _own_part(*self._role_and_index) if name == NAME else self.rest[name]

    def __iter__(self) -> Iterator[str]:
        yield from self.rest
        yield NAME

    def __len__(self) -> int:
        return len(self.rest) + 1


def without_tf_config(env: Mapping[str, str]) -> Mapping[str, str]:
    """Return the environment of a task without its TF_CONFIG."""
    return env.rest if isinstance(env, WithTfConfig) else env


def split(env: Mapping[str, str], mark: str) -> tuple[Mapping[str, str], str]:
    """Return the environment with ``mark`` instead of the common part of its TF_CONFIG, and that part."""
    return (env.with_common(mark), env.common) if isinstance(env, WithTfConfig) else (env, "")
