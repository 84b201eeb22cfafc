"""Have py-spy show the stacks of a task that hangs: unlike Python's faulthandler, it shows native frames, too.

Standard library only, Python >= 3.8: this module runs on hosts.
"""

from __future__ import annotations

import os

from tflaunch_worker import offload

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


def _ask(command: list[str]) -> str:
    """Return the output of a command, with a timeout. Called in a fork of the agent."""
    import subprocess  # slow to import, and only needed here

    try:
        answer = subprocess.run(command, capture_output=True, timeout=_PATIENCE, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{command[0]}: {error}\n"
    return answer.stdout[-_MOST_BYTES:].decode("utf-8", "replace")
