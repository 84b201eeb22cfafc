"""TF_CONFIG, composed on each host from the cluster and a task's place in it."""

import json
from typing import Mapping, Sequence

NAME = "TF_CONFIG"
"""Name of the environment variable."""


def compose(addresses: Mapping[str, Sequence[str]], roles: Sequence[str], role: str, index: int) -> str:
    """Return the TF_CONFIG of one task as compact JSON.

    Args:
        addresses: role to the ``host:port`` of its tasks, in the order of their index.
        roles: the roles that the task sees, in this order; those without tasks are left out.
        role: the task's role.
        index: the task's index within its role.
    """
    cluster = {name: list(addresses[name]) for name in roles if name in addresses}
    return json.dumps({"cluster": cluster, "task": {"type": role, "index": index}}, separators=(",", ":"))
