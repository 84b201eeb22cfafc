"""Send the user's code to one agent: offer it by hash, then send what is missing."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tflaunch.agents.transfer import Upload
from tflaunch_worker import fields

if TYPE_CHECKING:
    from tflaunch.agents.calls import Begin
    from tflaunch.agents.user_code import Code

_AHEAD = 8  # parts: few enough that a slow link still delivers heartbeats in time


class CodeUpload:
    """An upload of the user's code to one agent."""

    def __init__(self, code: Code, begin: Begin, failed: Callable[[str], None]) -> None:
        """Prepare it; ``failed`` takes the reason if a file can no longer be read."""
        self._code = code
        self._begin = begin
        self._failed = failed
        self._upload: Upload | None = None

    def offer(self) -> None:
        """Offer all files to the agent; repeated over each new link."""
        self._send(Upload(self._begin, "offer_files", self._code.offers(), self._offered, _AHEAD))

    def stop(self) -> None:
        """Send nothing any more."""
        if self._upload is not None:
            self._upload.stop()

    def _send(self, upload: Upload) -> None:
        self._upload = upload
        upload.send()

    def _offered(self, answer: dict[str, Any], problem: str) -> None:
        parts = self._code.parts(self._checked(fields.items(answer, "wanted")))
        self._send(Upload(self._begin, "write_file", parts, self._sent, _AHEAD))

    def _sent(self, answer: dict[str, Any], problem: str) -> None:
        if problem:
            self._failed(problem)

    def _checked(self, wanted: list[Any]) -> list[tuple[str, int]]:
        """Return what the agent lacks: a content's hash, and the byte to continue at, each.

        Raises:
            ValueError: the agent asks for a file that was not offered, or for one twice.
        """
        sizes = {file.sha256: file.size for file in self._code.files}
        offsets: dict[str, int] = {}
        for item in wanted:
            match item:
                case [str(sha256), offset] if (
                    type(offset) is int and 0 <= offset <= sizes.get(sha256, -1) and sha256 not in offsets
                ):
                    offsets[sha256] = offset
                case _:
                    raise ValueError("it asks for a file that was not offered, or for one twice")
        return list(offsets.items())
