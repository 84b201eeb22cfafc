"""Bringing the user's code to one agent: offered by hashes, sent in parts, a few of them ahead."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from tflaunch.hosts.code import Code, Part
from tflaunch_worker import wire

_AHEAD = 8  # parts under way: few enough that a slow link still carries the heartbeat in time


class Upload:
    """The user's code on its way to one agent."""

    def __init__(self, code: Code, send: Callable[[bytes], None]) -> None:
        """Prepare to send frames with ``send``."""
        self._code = code
        self._send = send
        self._parts: Iterator[Part] = iter(())
        self._under_way = 0

    def offer(self) -> None:
        """Tell the agent what there is; also when a new link has replaced a lost one."""
        files = [list(file) for file in self._code.files]
        self._send(wire.encode({"kind": "offer_files", "files": files, "links": self._code.links}))

    def begin(self, wanted: Sequence[str]) -> None:
        """Send what the agent does not have.

        Raises:
            OSError: a file cannot be read any more.
        """
        self._parts = self._code.parts(wanted)
        self._under_way = 0
        self._send_more()

    def part_taken(self) -> None:
        """The agent has one more part.

        Raises:
            OSError: a file cannot be read any more.
        """
        self._under_way -= 1
        self._send_more()

    def _send_more(self) -> None:
        while self._under_way < _AHEAD and (part := next(self._parts, None)) is not None:
            self._under_way += 1
            message = {"kind": "file_part", "sha256": part.sha256, "offset": part.offset, "is_last": part.is_last}
            self._send(wire.encode(message, part.data))
