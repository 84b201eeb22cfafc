"""A memory cgroup whose limit processes exceed: version 1 or 2, whatever this machine has."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from support.needs import lack
from support.waiting import wait_until

_PREFIX = "tflaunch-tests-"


class MemoryGroup:
    def __init__(self, root: Path, *, is_v2: bool) -> None:
        self.directory = root / f"{_PREFIX}{os.getpid()}"
        self._root, self._is_v2 = root, is_v2
        self._before: list[Path] = []

    def limit(self, limit: int, *, with_swap: bool) -> None:
        """Set the limit of memory, and of memory and swap if there is one; raise OSError if there is none."""
        names = ["memory.max" if self._is_v2 else "memory.limit_in_bytes"]
        names += ["memory.memsw.limit_in_bytes"] if with_swap else []
        for name in names:
            (self.directory / name).write_text(str(limit))
        if (self.directory / "memory.swap.max").exists():
            (self.directory / "memory.swap.max").write_text("0")

    def add(self, pid: int) -> None:
        """Put a process into it, unless it has just ended; what it has allocated stays with its former group."""
        with suppress(ProcessLookupError, FileNotFoundError):
            self._before.append(self._group_of(pid))
            (self.directory / "cgroup.procs").write_text(str(pid))

    def members(self) -> list[str]:
        return _members(self.directory)

    def kills(self) -> int:
        """Return how many of its processes the kernel has killed."""
        text = (self.directory / ("memory.events" if self._is_v2 else "memory.oom_control")).read_text()
        return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("oom_kill "))

    def remove(self) -> None:
        _remove(self.directory, *self._before, self._root)

    def _group_of(self, pid: int) -> Path:
        for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
            _, controllers, name = line.split(":", 2)
            if "memory" in controllers.split(",") or (self._is_v2 and not controllers):
                return self._root / name.lstrip("/")
        return self._root


@contextmanager
def memory_group(limit: int, *, with_swap: bool = False) -> Iterator[MemoryGroup]:
    """Make a group for the duration of the `with`; one that a killed program has left is removed by the next one.

    Args:
        limit: in bytes.
        with_swap: the sum of memory and swap has a limit of its own, of as much.
    """
    root, is_v2 = _hierarchy()
    for old in root.glob(f"{_PREFIX}*"):
        if not Path("/proc", old.name.removeprefix(_PREFIX)).exists():
            _remove(old, root)
    if is_v2 and "memory" not in (root / "cgroup.subtree_control").read_text().split():
        (root / "cgroup.subtree_control").write_text("+memory")
    group = MemoryGroup(root, is_v2=is_v2)
    group.directory.mkdir()
    try:
        group.limit(limit, with_swap=with_swap)
        yield group
    finally:
        group.remove()


def need_memory_groups(*, with_swap: bool = False) -> None:
    if why_no_groups(with_swap=with_swap):
        lack("cgroups")


def why_no_groups(*, with_swap: bool = False) -> str:
    """Return why no memory cgroup can be made, "" if one can."""
    try:
        with memory_group(1 << 30, with_swap=with_swap) as group:
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
