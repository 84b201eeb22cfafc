"""Query an agent that was started only to answer requests."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from tflaunch.agents.file_sync import Upload
from tflaunch.agents.left_files import LeftFile
from tflaunch.core import event_records
from tflaunch.printable import printable
from tflaunch.transport.base import Link, LinkError
from tflaunch_worker import wire
from tflaunch_worker.agent.left_files import PART

if TYPE_CHECKING:
    from tflaunch.agents.user_code import Code

_RECEIVE = 256 * 1024
_MOST_UNASKED = 1000  # messages received before a request asks for them


class AgentRpc:
    """Sends blocking requests, one after the other. The agent exits when the link is closed."""

    def __init__(self, link: Link, run: str) -> None:
        """Greet an agent that was just started.

        Raises:
            LinkError: the agent does not answer.
        """
        self._link = link
        self._decoder = wire.Decoder()
        self._heard: list[tuple[dict[str, Any], bytes]] = []
        self._order = 0
        terms = {"run": run, "lease": 0.0, "grace": 0.0, "fencing": 0, "seen": 0}
        link.socket.setblocking(True)
        self._say("hello", protocol=wire.PROTOCOL, clock=run, sent=time.monotonic(), **terms)
        self._hear(("greeted",), 10.0)

    def ask(self, kind: str, *answers: str, wait: float, **fields: Any) -> dict[str, Any]:
        """Send a command and return the reply, which is of one of the kinds ``answers``.

        Args:
            kind: the command's kind.
            answers: the kinds of replies to it.
            wait: the timeout for the reply, in seconds.
            fields: the command's fields.

        Raises:
            LinkError: the agent does not answer in time, or the link is lost.
        """
        return self._ask(kind, *answers, wait=wait, **fields)[0]

    def read_file(self, file: LeftFile, offset: int, wait: float) -> bytes:
        """Return a part of a file that the agent has listed, empty if it can no longer be read.

        Raises:
            LinkError: the agent does not answer in time, or with something else, or the link is lost.
        """
        about, part = self._ask("read_file", "file_read", wait=wait, **file._asdict(), offset=offset)
        if not {**file._asdict(), "offset": offset}.items() <= about.items() or len(part) > PART:
            raise LinkError("its agent broke the protocol: it sends a part of a file that was not requested")
        return part

    def _ask(self, kind: str, *answers: str, wait: float, **fields: Any) -> tuple[dict[str, Any], bytes]:
        self._order += 1
        self._say(kind, order=self._order, **fields)
        return self._hear(answers, wait)

    def send_code(self, code: Code, wait: float) -> None:
        """Send the user's code to the host as a run does.

        The agent has ``wait`` seconds to acknowledge each part.

        Raises:
            LinkError: the host cannot store it, or the agent does not answer.
            OSError: a file can no longer be read.
        """
        upload = Upload(code, self._send)
        upload.offer()
        while True:
            message, _ = self._hear(("part_taken", "files_wanted", "files_synced", "files_refused"), wait)
            if message["kind"] == "files_synced":
                return
            if message["kind"] == "files_refused":
                raise LinkError(f"sync: {message['reason']}")
            if message["kind"] == "files_wanted":
                upload.begin([(str(sha256), int(offset)) for sha256, offset in message["wanted"]])
            else:
                upload.part_taken()

    def close(self) -> None:
        """Close the link."""
        self._link.close()

    def _say(self, kind: str, **fields: Any) -> None:
        self._send(wire.encode({"kind": kind, **fields}))

    def _send(self, frame: bytes) -> None:
        try:
            self._link.socket.sendall(frame)
        except OSError as error:
            raise LinkError(f"its agent hung up: {error}") from None

    def _hear(self, kinds: tuple[str, ...], patience: float) -> tuple[dict[str, Any], bytes]:
        until = time.monotonic() + patience
        while True:
            for number, (message, body) in enumerate(self._heard):
                if message["kind"] in kinds:
                    del self._heard[number]
                    return _checked(message), body
                if message["kind"] == "refused":
                    raise LinkError(f"its agent does not understand: {printable(str(message.get('reason')), 200)}")
            if len(self._heard) > _MOST_UNASKED:
                raise LinkError("its agent broke the protocol: it sends more than it was asked for")
            self._receive(until)

    def _receive(self, until: float) -> None:
        self._link.socket.settimeout(max(until - time.monotonic(), 0.01))
        try:
            data = self._link.socket.recv(_RECEIVE)
            self._heard += self._decoder.feed(data)
        except TimeoutError:
            raise LinkError("its agent did not answer in time") from None
        except (OSError, wire.WireError) as error:
            raise LinkError(f"its agent hung up: {error}") from None
        if not data:
            raise LinkError("its agent hung up")


def _checked(message: dict[str, Any]) -> dict[str, Any]:
    """Return a reply; if it is an event, check it like the events of a run.

    Raises:
        LinkError: the event is malformed.
    """
    if not event_records.is_of_agents(message["kind"]):
        return message
    try:
        return {**message, **event_records.from_agent("", message)._asdict()}
    except ValueError as error:
        raise LinkError(f"its agent broke the protocol: {error}") from None
