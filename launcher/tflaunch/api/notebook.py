"""Show a run in a notebook: lines as in a terminal, written to the cell's output."""

from __future__ import annotations

import sys

from tflaunch.explain.run_status import Status
from tflaunch.printable import printable
from tflaunch.store.log_line import Kept, last_state
from tflaunch.tui import escapes


def is_running() -> bool:
    """Whether this program is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell is not None and hasattr(shell, "kernel")


class CellOutput:
    """Prints a run in the cell that is executing (an `OutputSink`)."""

    is_live = False
    shows_output = True

    def __init__(self, tasks: list[str]) -> None:
        """Print the output of these tasks, each line after its task's name."""
        self._width = max(map(len, tasks), default=0)

    def show(self, task: str, data: bytes, kept: Kept | None) -> None:
        """Print complete lines of a task."""
        for line in data.removesuffix(b"\n").split(b"\n"):
            text = escapes.without_commands(last_state(line)).decode("utf-8", "replace")
            print(f"{task:<{self._width}} | {text}")

    def finish(self, task: str) -> None:
        """Do nothing: only complete lines are shown."""

    def update(self, status: Status) -> None:
        """Do nothing: the display is not live."""

    def say(self, message: str, is_failure: bool = False) -> None:
        """Print a message of tflaunch."""
        for line in message.splitlines():
            print(f"tflaunch: {printable(line)}")

    def wait_until_written(self) -> None:
        """Send what was printed to the notebook."""
        sys.stdout.flush()

    def close(self, patience: float | None = None, limit: float | None = None) -> bool:
        """Send what was printed to the notebook."""
        sys.stdout.flush()
        return True
