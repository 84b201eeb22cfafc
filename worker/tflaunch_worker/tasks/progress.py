"""Progress: reports that a task writes to a pipe of its own, without printing anything.

TFLAUNCH_PROGRESS holds the path of the pipe. Each line is a JSON object in which any field may be omitted::

    {"step": 120, "epoch": 2, "epochs": 10, "steps_per_epoch": 100, "metrics": {"loss": 0.31}}

``echo '{"step": 5}' > "$TFLAUNCH_PROGRESS"`` is enough. ``step`` counts from the beginning of the training, ``epoch``
is the current epoch, starting with 1. A field keeps its value until a later line changes it; a metric set to null is
removed. Ignored are fields with other names or types, lines longer than 4096 bytes (longer ones cannot be written
atomically) and lines that are not JSON objects; still, each of them shows that the task is alive.

The agent holds both ends, so a writer never gets a broken pipe, and reads data as soon as it arrives. A task opens the
agent's own end in /proc: that needs no file and disappears with the agent, whereas a named pipe would be left without
a reader.

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
    """The progress pipe of one attempt; ``came`` is called whenever data arrives."""

    def __init__(self, loop: Loop, came: Callable[[], None]) -> None:
        """Create the pipe.

        Raises:
            OSError: it cannot be created.
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
        """Read everything that has been written and not read yet."""
        try:
            data = os.read(self._pipe, _READ)
        except BlockingIOError:
            return
        *lines, partial = (self._partial + data).split(b"\n")
        self._partial = partial[: LONGEST + 1]  # a line that is too long remains too long
        for line in lines:
            self._stats.take(line, self._loop.now())
        self._came()

    def known(self) -> dict[str, object]:
        """Return the known progress (see `ProgressStats.known`), empty if the task never reported any."""
        return self._stats.known(self._loop.now())

    def close(self) -> None:
        """Close the pipe: the attempt is over."""
        self._loop.forget(self._pipe)
        os.close(self._pipe)
        os.close(self._end)
