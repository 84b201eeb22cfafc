"""Where a hanging task hangs: its stacks, in its own output.

Python's faulthandler, which every task has switched on (PYTHONFAULTHANDLER), writes the stacks of all
threads at SIGABRT, even when the interpreter is blocked in C code. py-spy, where the task could run it,
is asked before: it sees native frames too.

Standard library only, Python >= 3.8: this module runs on hosts.
"""

from __future__ import annotations

import os
import signal

from tflaunch_worker import linux, offload

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable

    from tflaunch_worker.loop import Loop

_PATIENCE = 4  # seconds for py-spy
_MOST_BYTES = 256 * 1024


def write(pid: int, env: dict[str, str], loop: Loop, done: Callable[[bytes], None]) -> None:
    """Call ``done`` with what py-spy says of a process, at once with nothing where there is no py-spy."""
    spy = _find("py-spy", env.get("PATH", os.defpath))
    if spy is None:
        done(b"")
    else:
        offload.run_in_fork(
            loop, lambda: _ask([spy, "dump", "--pid", str(pid)]), lambda text: done((text or "").encode("utf-8"))
        )


def abort(pid: int) -> None:
    """Have a program write its stacks and die. It leaves no core file: one of TensorFlow's is many gigabytes."""
    linux.forbid_core_file(pid)
    for number in (signal.SIGABRT, signal.SIGCONT):  # a stopped process acts only when it goes on
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            pass


def _find(program: str, path: str) -> str | None:
    for place in path.split(":"):
        candidate = os.path.join(place, program)
        if place and os.access(candidate, os.X_OK):
            return candidate
    return None


def _ask(command: list[str]) -> str:
    """Return what a command writes; it must not take long. Called in a fork of the agent."""
    import subprocess  # heavy, and only needed here

    try:
        answer = subprocess.run(command, capture_output=True, timeout=_PATIENCE, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{command[0]}: {error}\n"
    return answer.stdout[-_MOST_BYTES:].decode("utf-8", "replace")
