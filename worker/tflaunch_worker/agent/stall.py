"""Report a task that has written nothing for a while, and write the stacks of one that hangs into its output.

The supervisor decides which of them hang. Python's faulthandler, which is enabled in every task (PYTHONFAULTHANDLER),
writes the stacks of all threads on SIGABRT, even while the interpreter is blocked in C code. If py-spy is on the task's
PATH, it is run first, because it also shows native frames.

Standard library only, Python >= 3.8: this module runs on hosts.
"""

from __future__ import annotations

import os
import signal

from tflaunch_worker import linux, offload

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable

    from tflaunch_worker.agent.supervisor_link import SupervisorLink
    from tflaunch_worker.agent.task import Task
    from tflaunch_worker.event_loop import Loop, Timer


class StallWatch:
    """Send ``output_stalled`` after ``seconds`` without output, and ``output_resumed`` when output resumes."""

    def __init__(self, loop: Loop, seconds: float, task: Task, link: SupervisorLink) -> None:
        self._loop = loop
        self._seconds = seconds
        self._about = {"task": task.name, "attempt": task.attempt}
        self._link = link
        self._spoke_at = loop.now()
        self._is_silent = False
        self._timer: Timer = loop.call_at(self._spoke_at + seconds, self._look)

    def note_output(self) -> None:
        """Note that the task has written output or progress."""
        self._spoke_at = self._loop.now()
        if self._is_silent:
            self._is_silent = False
            self._link.say("output_resumed", **self._about)
            self._timer = self._loop.call_at(self._spoke_at + self._seconds, self._look)

    def cancel(self) -> None:
        """Stop watching, because the task is gone."""
        self._timer.cancel()

    def _look(self) -> None:
        due = self._spoke_at + self._seconds
        if self._loop.now() < due:
            self._timer = self._loop.call_at(due, self._look)
        else:
            self._is_silent = True
            self._link.say("output_stalled", **self._about)


_PATIENCE = 4  # seconds for py-spy
_MOST_BYTES = 256 * 1024


def write_stacks(pid: int, env: dict[str, str], loop: Loop, done: Callable[[bytes], None]) -> None:
    """Call ``done`` with py-spy's dump of a process, or at once with nothing where py-spy is missing."""
    spy = _find("py-spy", env.get("PATH", os.defpath))
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
    """Return the output of a command, with a timeout. Called in a fork of the agent."""
    import subprocess  # slow to import, and only needed here

    try:
        answer = subprocess.run(command, capture_output=True, timeout=_PATIENCE, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{command[0]}: {error}\n"
    return answer.stdout[-_MOST_BYTES:].decode("utf-8", "replace")
