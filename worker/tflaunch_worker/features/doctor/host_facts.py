"""Collect what `tflaunch doctor` reports about a host before a job starts there."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import time
from typing import TYPE_CHECKING, Any, Dict, List, Tuple

from tflaunch_worker import linux, procfs, spawn
from tflaunch_worker.readable import duration_words

if TYPE_CHECKING:
    Facts = Dict[str, Any]

# The probe runs in the task's directory, in which a module of any name may lie.
_APART = "import sys; sys.path[:] = [entry for entry in sys.path if entry]; exec(sys.argv.pop(1))"
_PATIENCE = 20.0  # seconds for an interpreter, whose packages may be on a slow disk
_GPU_PATIENCE = 4.0


def examine(directory: str, commands: List[Tuple[spawn.Command, bool]], files: Tuple[int, int], probe: str) -> Facts:
    """Return the facts of this host. May take seconds.

    Args:
        directory: the agent's.
        commands: the tasks' distinct commands, each with whether it is a Python interpreter that can run the probe.
        files: soft and hard limit of open files for a task.
        probe: the source of `probe`.
    """
    places = [directory, *(command.workdir for command, _ in commands)]
    return {
        "python": platform.python_version(),
        "cores": os.cpu_count() or 1,
        "memory": procfs.memory(),
        "disk": {place: free for place in dict.fromkeys(places) if (free := _free(place)) is not None},
        "files": list(files),
        "gpus": _gpus(),
        "programs": [_program(command, probe if is_python else None) for command, is_python in commands],
        "time": time.time(),
    }


def _free(place: str) -> int | None:
    try:
        found = os.statvfs(place)
    except OSError:
        return None
    return found.f_bavail * found.f_frsize


def _gpus() -> List[str] | None:
    """Return the names of the GPUs, or None if there is a driver that does not answer."""
    if not os.path.exists(linux.NVIDIA_DRIVER):
        return []
    query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, stdout=subprocess.PIPE, timeout=_GPU_PATIENCE, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode("utf-8", "replace").split("\n")[:-1]


def _program(command: spawn.Command, probe: str | None) -> Facts:
    """Return the report of a task's interpreter; without a probe, find it only."""
    if not os.path.isdir(command.workdir):
        return {"problem": "there is no directory {}".format(command.workdir), "is_workdir": True}
    program = _which(command)
    if program is None:
        return {"problem": "command not found: {!r}".format(command.argv[0])}
    if probe is None:
        return {}
    try:
        done = subprocess.run(
            [program, "-c", _APART, probe, *command.argv[1:]],
            env=command.env, cwd=command.workdir, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=_PATIENCE, check=False,
        )  # fmt: skip
        known: Facts = json.loads(done.stdout.decode("utf-8", "replace").rstrip().rpartition("\n")[2])
    except subprocess.TimeoutExpired:
        return {"problem": "{} did not answer within {}".format(program, duration_words(_PATIENCE))}
    except (OSError, ValueError) as error:
        return {"problem": "{} cannot be asked: {}".format(program, error)}
    return known


def _which(command: spawn.Command) -> str | None:
    name = command.argv[0]
    if os.sep in name:
        path = os.path.join(command.workdir, name)
        return path if os.access(path, os.X_OK) else None
    return shutil.which(name, path=command.env.get("PATH"))


def mark(directory: str, token: str) -> str | None:
    """Create a probe file in a directory or its nearest existing parent.

    Returns its path, or None.
    """
    if not os.path.isabs(directory):
        return None  # the agent has no directory to which a relative path could refer
    place = os.path.abspath(directory)
    while not os.path.isdir(place) and place != "/":
        place = os.path.dirname(place)
    path = os.path.join(place, ".tflaunch-{}".format(token))
    if place == "/":
        return None
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    except OSError:
        return None
    return path


def unmark(path: str) -> None:
    """Remove a probe file."""
    try:
        os.unlink(path)
    except OSError:
        pass  # its disk is gone
