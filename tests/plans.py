"""Small plans for tests of the supervisor."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any

from tflaunch import plan, spec
from tflaunch.machine import Machine
from tflaunch.plan import Plan

MACHINE = Machine(
    cores=8,
    local_names=frozenset({"localhost"}),
    environ={"PATH": "/bin"},
    python_directory=None,
    server_program="/opt/server.py",
)


def make(cluster: dict[str, Any], **fields: Any) -> Plan:
    """Return the plan of a spec with this cluster."""
    read = spec.read({"cluster": cluster, "command": ["train"], **fields})
    assert isinstance(read, spec.Spec), read
    return plan.make(read, PurePosixPath("/job"), MACHINE)
