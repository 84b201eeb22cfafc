"""Handle the supervisor's offer of files: receive the missing ones and place all for the tasks.

Standard library only, Python >= 3.8: this module runs on hosts.
"""

from __future__ import annotations

import os

from tflaunch_worker import CODE_NAME, offload
from tflaunch_worker.sync.files import Files, FilesError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from tflaunch_worker.loop import Loop
    from tflaunch_worker.supervisor_link import SupervisorLink


class Offer:
    """Handles the orders ``offer_files`` and ``file_part``."""

    def __init__(self, directory: str, loop: Loop, link: SupervisorLink) -> None:
        """Handle offers for the agent with this directory."""
        self._directory = directory
        self._loop = loop
        self._link = link
        self._offered: tuple[list[list[Any]], list[list[str]]] = [], []
        self._files: Files | None = None

    def obey(self, message: dict[str, Any], body: bytes) -> None:
        """Handle an order.

        Raises:
            ValueError: the order is invalid.
        """
        if message["kind"] == "offer_files":
            self._hear(message)
        else:
            self._take_part(message, body)

    def _hear(self, message: dict[str, Any]) -> None:
        """Add a part of the list of files; after a lost link the whole list is sent again."""
        if self._files is None:
            if message["is_first"]:
                self._offered = [], []
            self._offered[0].extend(message["files"])
            self._offered[1].extend(message["links"])
        if not message["is_last"]:
            self._link.answer("part_taken")
            return
        if self._files is None:
            self._files = Files(self._directory, *self._offered)
        files = self._files
        if files.is_compared:
            self._want()
        elif not files.is_being_compared:
            files.is_being_compared = True
            offload.run_in_fork(self._loop, files.compare, self._compared)

    def _compared(self, missing: list[str] | None) -> None:
        assert self._files is not None
        if missing is None:
            self._link.say("files_refused", reason="the files that are there could not be looked at")
        else:
            self._files.compared(missing)
            self._want()

    def _want(self) -> None:
        assert self._files is not None
        if self._files.is_complete:
            self._place()
        else:
            self._link.answer("files_wanted", wanted=self._files.wanted())

    def _take_part(self, message: dict[str, Any], body: bytes) -> None:
        if self._files is None:
            raise ValueError("no files were offered")
        try:
            self._files.take(message["sha256"], message["offset"], body, message["is_last"])
        except FilesError as error:
            self._link.say("files_refused", reason=str(error))
            return
        self._link.answer("part_taken")
        if self._files.is_complete:
            self._place()

    def _place(self) -> None:
        files = self._files
        assert files is not None
        if not files.is_being_placed:
            files.is_being_placed = True
            offload.run_in_fork(self._loop, files.place, self._placed)

    def _placed(self, failure: str | None) -> None:
        if failure == "":
            self._link.say("files_synced", directory=os.path.join(self._directory, CODE_NAME))
        else:
            self._link.say("files_refused", reason=failure or "the files could not be put in their places")
