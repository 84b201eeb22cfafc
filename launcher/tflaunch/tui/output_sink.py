"""What the supervisor and its followers need of whatever shows a run to people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from tflaunch.store.log_sink import OutputScreen


class OutputSink(OutputScreen, Protocol):
    """Takes the output and the messages of a run: a screen, or the log of a detached supervisor."""

    @property
    def is_live(self) -> bool:
        """Whether `update` is worth its while."""

    @property
    def shows_output(self) -> bool:
        """Whether `show` shows the output of tasks to the user."""

    def update(self, status: Mapping[str, Any]) -> None:
        """Show how the run stands."""

    def say(self, message: str, is_failure: bool = False) -> None:
        """Show a message of tflaunch itself; the first line of a failure stands out."""

    def wait_until_written(self) -> None:
        """Wait for the reader, until everything is written."""

    def close(self, patience: float | None = None, limit: float | None = None) -> bool:
        """Wait until everything is written; return False if that took too long.

        Args:
            patience: seconds to wait for a reader that takes nothing; None for no limit.
            limit: seconds to wait in all; None for no limit.
        """
