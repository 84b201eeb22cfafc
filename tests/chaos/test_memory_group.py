"""The memory cgroups of drills."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.memory_group import MemoryGroup, need_memory_groups

pytestmark = pytest.mark.agent

ALLOCATE = "import sys; sys.stdin.read(1); kept = bytearray(256 << 20); kept[:] = b'x' * len(kept)"


def groups_of(pid: int) -> str:
    """Return the cgroups of a process."""
    return Path(f"/proc/{pid}/cgroup").read_text()


def test_the_kernel_kills_what_exceeds_a_limit() -> None:
    """Only the process that was put into the group; another one returns to where it was, and no group is left."""
    need_memory_groups()
    before = groups_of(os.getpid())
    with subprocess.Popen([sys.executable, "-c", ALLOCATE], stdin=subprocess.PIPE) as greedy:
        with MemoryGroup(32 << 20) as group:
            group.add(greedy.pid)
            assert groups_of(greedy.pid) != before
            greedy.communicate(b"x")
            assert group.kills() == 1
        assert greedy.returncode == -signal.SIGKILL
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as modest:
        with MemoryGroup(32 << 20) as group:
            group.add(modest.pid)
        assert groups_of(modest.pid) == before
        modest.communicate()
    with MemoryGroup(32 << 20) as group:
        group.add(greedy.pid)  # it has ended
        assert group.members() == []
