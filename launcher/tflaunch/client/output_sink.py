"""The interface between the supervisor, its followers and whatever displays a run."""

from __future__ import annotations

from typing import Protocol

from tflaunch.explain.run_status import Status
from tflaunch.store.log_sink import OutputScreen


class OutputSink(OutputScreen, Protocol):
    """Receives a run's output and messages: a screen, or a detached supervisor's log."""

    @property
    def is_live(self) -> bool:
        """Whether `update` has an effect."""

    @property
    def shows_output(self) -> bool:
        """Whether `show` displays the tasks' output to the user."""

    def update(self, status: Status) -> None:
        """Show the run's current status."""

    def say(self, message: str, is_failure: bool = False) -> None:
        """Show a message of tflaunch itself; the first line of a failure is highlighted."""

    def wait_until_written(self) -> None:
        """Block until the reader has taken everything."""

    def close(self, patience: float | None = None, limit: float | None = None) -> bool:
        """Wait until everything is written; return False on timeout.

        Args:
            patience: seconds to wait for a reader that takes nothing; None for no limit.
            limit: seconds to wait in total; None for no limit.
        """
