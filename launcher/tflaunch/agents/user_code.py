"""The user's code, as those see it who have it copied to hosts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from tflaunch.agents.calls import Begin


class CodeUpload(Protocol):
    """An upload of the user's code to one agent."""

    def offer(self) -> None:
        """Offer all of it to the agent; repeated over each new link."""

    def stop(self) -> None:
        """Send nothing any more."""


class UserCode(Protocol):
    """The user's code, which is copied to hosts."""

    def keep(self, run: Path) -> UserCode:
        """Copy the code to the directory of a run; return the code that is read there."""

    def export(self, run: Path) -> list[tuple[Path, str]]:
        """Describe a full copy of the code in the directory of a run.

        Returns the files of the copy, and their paths in it.
        """

    def upload(self, begin: Begin, failed: Callable[[str], None]) -> CodeUpload:
        """Return an upload that begins its calls with ``begin``.

        ``failed`` takes why a file can no longer be read.
        """
