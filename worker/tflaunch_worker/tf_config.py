"""TF_CONFIG, composed on each host from the cluster and a task's place in it."""

import json
from typing import Mapping, Sequence

NAME = "TF_CONFIG"
"""Name of the environment variable."""


def compose(addresses: Mapping[str, Sequence[str]], roles: Sequence[str], role: str, index: int) -> str:
    """Return the TF_CONFIG of one task as compact JSON.

    ``roles`` are those that the task sees, in this order; those without ``addresses`` are left out.
    """
    cluster = {name: list(addresses[name]) for name in roles if name in addresses}
    return json.dumps({"cluster": cluster, "task": {"type": role, "index": index}}, separators=(",", ":"))
