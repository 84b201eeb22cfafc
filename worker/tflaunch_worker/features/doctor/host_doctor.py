"""Answer `tflaunch doctor`: facts of this host, and probe files."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import time
from contextlib import suppress
from typing import Any, ClassVar, Dict, List, Tuple

from tflaunch_worker import host_vars, linux, offload, procfs, spawn
from tflaunch_worker.agent import orders
from tflaunch_worker.agent.calls import Call
from tflaunch_worker.agent.network.fence import why_unavailable
from tflaunch_worker.agent.services import Service
from tflaunch_worker.readable import duration_words
from tflaunch_worker.schema import check_fields, flag, list_of, optional, refuse, text

Facts = Dict[str, Any]

# The probe runs in the task's directory, in which a module of any name may lie.
_APART = "import sys; sys.path[:] = [entry for entry in sys.path if entry]; exec(sys.argv.pop(1))"
_PATIENCE = 20.0  # seconds for an interpreter, whose packages may be on a slow disk
_GPU_PATIENCE = 4.0


def _program(name: str, value: Any) -> dict[str, Any]:
    """Check a command, which may be that of a Python."""
    if type(value) is not dict:
        raise refuse(name, "an object", value)
    return check_fields(value, {**orders.COMMAND, "is_python": flag})


class HostDoctor(Service):
    """Examines this host."""

    CALLS: ClassVar = {
        "examine": {"programs": list_of(_program), "probe": text(), "private": optional(flag)},
        "leave_marks": {"token": orders.word, "directories": orders.words},
        "look_for_marks": {"paths": orders.words},
        "remove_marks": {"paths": orders.words},
    }

    def leave_marks(self, call: Call, message: dict[str, Any]) -> None:
        """Create a file in each directory, and answer with its path or null."""
        token = message["token"]
        places = {place: mark(os.path.expanduser(place), token) for place in message["directories"]}
        call.answer(places=places)

    def look_for_marks(self, call: Call, message: dict[str, Any]) -> None:
        """Answer with the paths that exist."""
        paths = message["paths"]
        look = lambda: [path for path in paths if os.path.exists(path)]  # noqa: E731
        offload.run_in_fork(self.agent.loop, look, lambda seen: call.answer(seen=seen or []))

    def remove_marks(self, call: Call, message: dict[str, Any]) -> None:
        """Remove files that `leave_marks` has created."""
        for path in message["paths"]:
            with suppress(OSError):  # its disk is gone
                os.unlink(path)
        call.answer()

    def examine(self, call: Call, message: dict[str, Any]) -> None:
        """Answer with facts of this host, and of the interpreters of programs."""
        host = self.agent.host
        commands: list[tuple[spawn.Command | str, bool]] = []
        for program in message["programs"]:
            try:
                commands.append((host.command("doctor", program, None), program["is_python"]))
            except host_vars.UnknownValueError as unknown:
                commands.append((str(unknown), False))
        probe, directory, files = message["probe"], host.directory, host.settings.max_files

        def answered(facts: dict[str, Any] | None) -> None:
            if facts is not None:
                facts["unfenced"] = why_unavailable()
                if message.get("private"):
                    facts["not_private"] = host.open_private_network()
                    facts["no_way_out"] = host.no_way_out
            call.answer(facts=facts)

        offload.run_in_fork(self.agent.loop, lambda: _examine(directory, commands, files, probe), answered)


def _examine(
    directory: str, commands: List[Tuple[spawn.Command | str, bool]], files: Tuple[int, int], probe: str
) -> Facts:
    """Return the facts of this host. May take seconds.

    ``commands``: the tasks' distinct commands, or why there is none, each with whether it is a Python interpreter that
    can run the ``probe``.
    """
    places = [directory, *(command.workdir for command, _ in commands if isinstance(command, spawn.Command))]
    return {
        "python": platform.python_version(),
        "cores": os.cpu_count() or 1,
        "memory": procfs.memory(),
        "disk": {place: free for place in dict.fromkeys(places) if (free := _free(place)) is not None},
        "files": list(files),
        "gpus": _gpus(),
        "programs": [_ask_program(command, probe if is_python else None) for command, is_python in commands],
        "time": time.time(),
    }


def _free(place: str) -> int | None:
    try:
        return shutil.disk_usage(place).free
    except OSError:
        return None


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


def _ask_program(command: spawn.Command | str, probe: str | None) -> Facts:
    """Return the report of a task's interpreter; without a probe, find it only."""
    if isinstance(command, str):
        return {"problem": command}
    if not os.path.isdir(command.workdir):
        return {"problem": "there is no directory {}".format(command.workdir), "is_workdir": True}
    program = spawn.find_program(command)
    if not program:
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


def mark(directory: str, token: str) -> str | None:
    """Create a probe file in a directory, or in a parent; return its path, or None."""
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
