"""A run in a Slurm allocation that leaves its nodes unused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.specs import made
from tflaunch.features.slurm import allocation

pytestmark = pytest.mark.unit

LOGIN_NODE = {"SLURM_JOB_ID": "17", "SLURM_JOB_NUM_NODES": "2"}
TWO = {"worker": 2}


@pytest.mark.parametrize(
    ("environ", "cluster", "says"),
    [
        (LOGIN_NODE, TWO, "and not on the 2 nodes of job 17 of Slurm"),
        ({**LOGIN_NODE, "SLURM_JOB_NUM_NODES": "1"}, TWO, "and not on the node of job 17 of Slurm"),
        ({**LOGIN_NODE, "SLURMD_NODENAME": "n1"}, TWO, "and not on the 2 nodes"),
        ({**LOGIN_NODE, "SLURM_JOB_NUM_NODES": "1", "SLURMD_NODENAME": "n1"}, TWO, ""),
        (LOGIN_NODE, {"worker": ["n1", "n2"]}, ""),
        ({}, TWO, ""),
    ],
    ids=["login node", "one node", "first node", "the only node", "named hosts", "elsewhere"],
)
def test_unused_nodes_are_told(
    monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], cluster: dict[str, Any], says: str
) -> None:
    """With what to write; there is no file that the warning is about."""
    for name in ("SLURM_JOB_ID", "SLURM_JOB_NUM_NODES", "SLURMD_NODENAME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    found = allocation.find_warnings(made({"cluster": cluster, "command": ["x"]}), Path())
    assert [says in problem.message and "--set hosts.discover=slurm" in problem.hint for problem in found] == (
        [True] if says else []
    )
