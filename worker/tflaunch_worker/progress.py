"""Progress: lines that a task writes into a pipe of its own, to say that it works, without printing anything.

The pipe's name is in TFLAUNCH_PROGRESS; ``echo '{"step": 5}' > "$TFLAUNCH_PROGRESS"`` is enough. The agent
holds both ends, so a writer never meets a broken pipe, and reads whatever comes at once.

Standard library only, Python >= 3.8: this module runs on hosts.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable

    from tflaunch_worker.loop import Loop

PIPE_NAME = "progress"
"""The pipe's name in the task's directory."""

_READ = 64 * 1024


class Progress:
    """The pipe of one attempt; ``came`` is called whenever something was written into it."""

    def __init__(self, directory: str, loop: Loop, came: Callable[[], None]) -> None:
        """Make the pipe in the task's directory, anew for this attempt.

        Raises:
            OSError: it cannot be made.
        """
        path = os.path.join(directory, PIPE_NAME)
        try:
            os.unlink(path)
        except FileNotFoundError:
            pass
        os.mkfifo(path, 0o600)
        self._loop = loop
        self._came = came
        self._pipe = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        loop.watch(self._pipe, self._read)

    def _read(self) -> None:
        os.read(self._pipe, _READ)
        self._came()

    def close(self) -> None:
        """The attempt is over."""
        self._loop.forget(self._pipe)
        os.close(self._pipe)
