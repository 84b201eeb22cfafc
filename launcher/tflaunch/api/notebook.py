"""Show a run in a notebook: its tasks' states, kept up to date, and their lines."""

import html
import sys
from typing import Any

from tflaunch.explain.run_status import Status
from tflaunch.explain.startup_messages import StartupMessages
from tflaunch.store.log_sink import OutputSink
from tflaunch.store.log_writer import Kept, last_state
from tflaunch.tui import formatting
from tflaunch.tui.layout import table
from tflaunch_worker.readable import printable


def is_running() -> bool:
    """Whether this program is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell is not None and hasattr(shell, "kernel")


_COLUMNS = 110  # what fits into a cell of a usual width


class CellOutput(OutputSink):
    """Shows a run in the cell that is executing."""

    is_live = True
    shows_output = True

    def __init__(self, tasks: list[str]) -> None:
        """Show these tasks, and their output, each line after its task's name."""
        self._width = max(map(len, tasks), default=0)
        self._view: Any = None
        self._startup = StartupMessages()

    def show(self, task: str, data: bytes, kept: Kept | None) -> None:
        """Print complete lines of a task, without TensorFlow's start-up messages."""
        shown = self._startup.without(task, data.removesuffix(b"\n"))
        print(self._startup.note().decode(), end="")
        for line in shown.split(b"\n") if shown is not None else ():
            text = formatting.without_commands(last_state(line)).decode("utf-8", "replace")
            print(f"{task:<{self._width}} | {text}")

    def update(self, status: Status) -> None:
        """Show this status in place of the last one; a front end without HTML shows text."""
        from IPython.display import display  # only a kernel has it

        text = table(status, _COLUMNS)
        shown = {"text/plain": text, "text/html": f"<pre>{html.escape(text)}</pre>"}
        if self._view is None:
            self._view = display(shown, raw=True, display_id=True)  # type: ignore[no-untyped-call]
        else:
            self._view.update(shown, raw=True)

    def say(self, message: str, is_failure: bool = False) -> None:
        """Print a message of tflaunch."""
        for line in message.splitlines():
            print(f"tflaunch: {printable(line)}")

    def wait_until_written(self) -> None:
        """Send what was printed to the notebook."""
        sys.stdout.flush()
