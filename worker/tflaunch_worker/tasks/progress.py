"""Progress: what a task says of how far it is, in a pipe of its own, without printing anything.

Where to open the pipe is in TFLAUNCH_PROGRESS. Each line is a JSON object, of which any field may be left out::

    {"step": 120, "epoch": 2, "epochs": 10, "steps_per_epoch": 100, "metrics": {"loss": 0.31}}

``echo '{"step": 5}' > "$TFLAUNCH_PROGRESS"`` is enough. ``step`` counts from the beginning of the training,
``epoch`` is the one that is under way, the first being 1. A field keeps its value until a later line gives it
another one; a metric that is null is not known any more. Fields of other names or types are ignored, and so
are lines longer than 4096 bytes (more cannot be written in one piece) and lines that are no JSON objects; any
of them shows that the task works.

The agent holds both ends, so a writer never meets a broken pipe, and reads whatever comes at once. A task opens the
agent's own end in /proc: that takes no file, and is gone with the agent, where nobody would read a file's other end.

Standard library only, Python >= 3.8: this module runs on hosts.
"""

from __future__ import annotations

import os

from tflaunch_worker.tasks.progress_stats import LONGEST, ProgressStats

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable

    from tflaunch_worker.loop import Loop

_READ = 64 * 1024


class Progress:
    """The pipe of one attempt; ``came`` is called whenever something was written into it."""

    def __init__(self, loop: Loop, came: Callable[[], None]) -> None:
        """Make the pipe.

        Raises:
            OSError: it cannot be made.
        """
        self._pipe, self._end = os.pipe()
        self.path = f"/proc/{os.getpid()}/fd/{self._end}"
        self._loop = loop
        self._came = came
        self._stats = ProgressStats()
        self._partial = b""
        os.set_blocking(self._pipe, False)
        loop.watch(self._pipe, self.read_rest)

    def read_rest(self) -> None:
        """Read what has been written and not yet read."""
        try:
            data = os.read(self._pipe, _READ)
        except BlockingIOError:
            return
        *lines, partial = (self._partial + data).split(b"\n")
        self._partial = partial[: LONGEST + 1]  # what is too long stays so
        for line in lines:
            self._stats.take(line, self._loop.now())
        self._came()

    def known(self) -> dict[str, object]:
        """Return what is known (see `ProgressStats.known`), nothing if the task never said."""
        return self._stats.known(self._loop.now())

    def close(self) -> None:
        """The attempt is over."""
        self._loop.forget(self._pipe)
        os.close(self._pipe)
        os.close(self._end)
