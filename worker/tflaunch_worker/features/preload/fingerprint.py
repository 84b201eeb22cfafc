"""Fingerprints of a process's imports and inherited state, to notice changes."""

from __future__ import annotations

import importlib.machinery
import os
import sys
from typing import Dict, List, Union

Fingerprint = Dict[str, Union[List[int], List[str], None]]
"""Path to status of a file (None if it need not exist and does not), or to the importable names in a directory."""

_CONFIGURATION = ("~/.keras/keras.json",)
"""Files that modules read while they are imported."""

_METADATA = (".dist-info", ".egg-info", ".egg-link", ".egg", ".pth")
_MISSING = [-1]
_CLOCK_STEP = 20_000_000  # nanoseconds; the kernel dates files by its last timer tick
_TRAITS = ("Uid", "Gid", "Groups", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp")
_SETS = ("Cpus_allowed", "Mems_allowed")


def take_fingerprint() -> Fingerprint:
    """Return the state on disk of everything that was imported into this process.

    That is: the files of all modules and shared libraries, the interpreter, what can be imported by name from each
    directory of ``sys.path``, and the metadata of installed packages.
    """
    files, names = {os.path.realpath("/proc/self/exe"), sys.executable}, set()
    for name, module in list(sys.modules.items()):
        names.add(name.partition(".")[0])
        path = getattr(module, "__file__", None)
        if isinstance(path, str):
            files.add(path)
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
        files.update(row[5] for row in (line.rstrip("\n").split(None, 5) for line in maps) if _is_file(row))
    found: Fingerprint = {path: _status(path) or _MISSING for path in files}
    for path in (os.path.join(sys.prefix, "pyvenv.cfg"), *map(os.path.expanduser, _CONFIGURATION)):
        found[path] = _status(path)
    for place in sys.path:
        found[place] = _listing(place, names, found) if os.path.isdir(place) else _status(place)
    return found


def _is_file(row: list[str]) -> bool:
    return len(row) > 5 and row[5].startswith("/") and not row[5].startswith(("/dev/", "/memfd:", "/SYSV"))


def changed_since(fingerprint: Fingerprint, when: int) -> str:
    """Return a file changed or removed since ``when``, epoch nanoseconds; "" for none."""
    for path, status in fingerprint.items():
        if status and isinstance(status[-1], int) and (status == _MISSING or status[-1] > when - _CLOCK_STEP):
            return path
    return ""


def difference(before: Fingerprint, now: Fingerprint) -> str:
    """Return a path with another state than before, or "" if there is none."""
    return next((path for path in sorted({*before, *now}) if before.get(path) != now.get(path)), "")


def _listing(place: str, names: set[str], found: Fingerprint) -> list[str]:
    """List the modules of a directory, and add the state of its metadata to ``found``.

    Other files may come and go: a program may write its checkpoints there.
    """
    suffixes = tuple(importlib.machinery.all_suffixes())
    offered = []
    for entry in os.scandir(place):
        if entry.name.endswith(_METADATA):
            found[entry.path] = _status(entry.path)
        elif entry.name.endswith(suffixes) or entry.name in names or _is_package(entry):
            offered.append(entry.name)
    return sorted(offered)


def _is_package(entry: os.DirEntry[str]) -> bool:
    return entry.name.isidentifier() and os.path.exists(os.path.join(entry.path, "__init__.py"))


def _status(path: str) -> list[int] | None:
    """Return a file's identity, with the change time last; None without a file."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return [status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]


def process_traits() -> dict[str, str]:
    """Return the inherited state apart from environment, directory and descriptors.

    A run that is started by another process must find the same: user, limits, CPUs, control group, namespaces.
    """
    with open("/proc/self/status", encoding="utf-8") as file:
        status = dict(line.rstrip("\n").split(":", 1) for line in file)
    traits = {name: status[name].strip() for name in (*_TRAITS, *_SETS) if name in status}
    traits["niceness"] = str(os.getpriority(os.PRIO_PROCESS, 0))
    traits["root"] = os.readlink("/proc/self/root")
    for name in sorted(os.listdir("/proc/self/ns")):
        traits[name] = os.readlink(f"/proc/self/ns/{name}")
    with open("/proc/self/limits", encoding="utf-8") as file:
        traits["limits"] = file.read()
    with open("/proc/self/cgroup", encoding="utf-8") as file:
        traits["cgroup"] = "\n".join(map(_without_session, file.read().splitlines()))
    return traits


def _without_session(group: str) -> str:
    """Return a control group without systemd's group for each login session."""
    parent, _, name = group.rpartition("/")
    return parent if name.startswith("session-") and name.endswith(".scope") else group
