"""A memory cgroup whose limit processes exceed: version 1 or 2, whatever this machine has."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from support.needs import lack
from support.waiting import wait_until

if TYPE_CHECKING:
    from typing_extensions import Self

_PREFIX = "tflaunch-tests-"


class MemoryGroup:
    """A group with a limit, for the duration of the `with`; processes that live at its end return to where they were.

    A group that a killed program has left is removed by the next one.
    """

    def __init__(self, limit: int) -> None:
        """Make no group yet; ``limit`` is in bytes."""
        self._limit = limit
        self._root, self._is_v2 = _hierarchy()
        self._directory = self._root / f"{_PREFIX}{os.getpid()}"
        self._before: dict[int, Path] = {}

    def __enter__(self) -> Self:
        """Make it."""
        for old in self._root.glob(f"{_PREFIX}*"):
            if not Path("/proc", old.name.removeprefix(_PREFIX)).exists():
                _remove(old, self._root)
        if self._is_v2 and "memory" not in (self._root / "cgroup.subtree_control").read_text().split():
            (self._root / "cgroup.subtree_control").write_text("+memory")
        self._directory.mkdir()
        name = "memory.max" if self._is_v2 else "memory.limit_in_bytes"
        (self._directory / name).write_text(str(self._limit))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Remove it."""
        _remove(self._directory, *self._before.values(), self._root)

    def add(self, pid: int) -> None:
        """Put a process into it, unless it has just ended; what it has allocated stays with its former group."""
        with suppress(ProcessLookupError, FileNotFoundError):
            self._before[pid] = self._group_of(pid)
            (self._directory / "cgroup.procs").write_text(str(pid))

    def members(self) -> list[str]:
        """Return the pids of its processes."""
        return _members(self._directory)

    def kills(self) -> int:
        """Return how many of its processes the kernel has killed."""
        name = "memory.events" if self._is_v2 else "memory.oom_control"
        return next(
            int(line.split()[1])
            for line in (self._directory / name).read_text().splitlines()
            if line.startswith("oom_kill ")
        )

    def _group_of(self, pid: int) -> Path:
        for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
            _, controllers, name = line.split(":", 2)
            if "memory" in controllers.split(",") or (self._is_v2 and not controllers):
                return self._root / name.lstrip("/")
        return self._root


def need_memory_groups() -> None:
    """Require memory cgroups."""
    if why_no_groups():
        lack("cgroups")


def why_no_groups() -> str:
    """Return why no memory cgroup can be made, "" if one can."""
    try:
        with MemoryGroup(1 << 30) as group:
            group.kills()
    except (OSError, StopIteration, LookupError) as error:
        return f"no memory cgroup can be made here: {error}"
    return ""


def _hierarchy() -> tuple[Path, bool]:
    """Return where memory cgroups are, and whether they are of version 2."""
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    for _, where, kind, options, *_ in mounts:
        if kind == "cgroup" and "memory" in options.split(","):
            return Path(where), False
    for _, where, kind, *_ in mounts:
        if kind == "cgroup2" and "memory" in Path(where, "cgroup.controllers").read_text().split():
            return Path(where), True
    raise LookupError("no cgroup file system has the controller")


def _remove(directory: Path, *to: Path) -> None:
    """Remove a group; its processes go to the first of the other groups that takes them."""

    def is_removed() -> bool:
        for pid in _members(directory):
            for group in to:
                with suppress(OSError):
                    (group / "cgroup.procs").write_text(pid)
                    break
        with suppress(OSError):  # the kernel releases those that it has killed a little later
            directory.rmdir()
        return not directory.exists()

    wait_until(is_removed, otherwise=f"{directory} has processes: {_members(directory)}")


def _members(directory: Path) -> list[str]:
    try:
        return (directory / "cgroup.procs").read_text().split()
    except FileNotFoundError:
        return []
