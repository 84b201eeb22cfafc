"""Write the stacks of a task that hangs into its output, and end it.

Python's faulthandler, which is enabled in every task (PYTHONFAULTHANDLER), writes the stacks of all threads on SIGABRT,
even while the interpreter is blocked in C code. If py-spy is on the task's PATH, it is run first, because it also shows
native frames.

Standard library only, Python >= 3.8: this module runs on hosts.
"""

from __future__ import annotations

import os
import signal

from tflaunch_worker import linux, offload

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable

    from tflaunch_worker.event_loop import Loop

_PATIENCE = 4  # seconds for py-spy
_MOST_BYTES = 256 * 1024


def write_stacks(pid: int, env: dict[str, str], loop: Loop, done: Callable[[bytes], None]) -> None:
    """Call ``done`` with py-spy's dump of a process, or at once with nothing where py-spy is missing."""
    import shutil  # slow to import, and only needed here

    spy = shutil.which("py-spy", path=env.get("PATH", os.defpath))
    if spy is None:
        done(b"")
    else:
        offload.run_in_fork(
            loop, lambda: _ask([spy, "dump", "--pid", str(pid)]), lambda text: done((text or "").encode("utf-8"))
        )


def abort_with_stacks(pid: int) -> None:
    """Make a program write its stacks and die without a core file, which has gigabytes with TensorFlow."""
    linux.forbid_core_file(pid)
    for number in (signal.SIGABRT, signal.SIGCONT):  # a stopped process acts only after it is continued
        linux.kill(pid, None, number)


def _ask(command: list[str]) -> str:
    """Return the output of a command, with a timeout. Called in a fork of the agent."""
    import subprocess  # slow to import, and only needed here

    try:
        answer = subprocess.run(command, capture_output=True, timeout=_PATIENCE, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{command[0]}: {error}\n"
    return answer.stdout[-_MOST_BYTES:].decode("utf-8", "replace")
