"""A session: the conversation with one agent. Frames become events and words; actions become frames."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Protocol

from tflaunch import events
from tflaunch.hosts.link import Link
from tflaunch.mailbox import Mailbox
from tflaunch_worker import wire

_RECEIVE = 1024 * 1024


class Words(Protocol):
    """Where the output of tasks goes."""

    def write(self, task: str, attempt: int, data: bytes, done: Callable[[], None]) -> None:
        """Keep output; call ``done`` when it is out of our hands, so that more may come."""

    def lose(self, task: str, attempt: int, size: int) -> None:
        """State that output is missing."""

    def end(self, task: str, attempt: int) -> None:
        """An attempt will say no more."""


class Session:
    """Speaks with the agent of one host over a link."""

    def __init__(self, host: str, link: Link, mailbox: Mailbox, words: Words) -> None:
        self.host = host
        self.is_open = True
        self._link = link
        self._mailbox = mailbox
        self._words = words
        self._decoder = wire.Decoder()
        self._out = bytearray()
        self._seen = 0
        self._offsets: dict[tuple[str, int], tuple[int, bool]] = {}
        self._is_acknowledging = False
        self._is_leaving = False
        link.socket.setblocking(False)
        mailbox.watch(link.socket.fileno(), self._serve)

    # ---- what we say

    def hello(self, run: str, lease: float, grace: float) -> None:
        """Introduce ourselves; the agent answers with a greeting, which becomes `HostJoined`."""
        self.say("hello", protocol=wire.PROTOCOL, run=run, lease=lease, grace=grace, seen=self._seen)

    def leave(self) -> None:
        """Ask the agent to end what still lives and to exit; the session closes when it has."""
        self._is_leaving = True
        self.say("leave", grace=0)

    def say(self, kind: str, **fields: object) -> None:
        """Queue a message; it is sent as the link takes it."""
        if self.is_open:
            self._out += wire.encode({"kind": kind, **fields})
            self._flush()

    def _flush(self) -> None:
        link = self._link.socket
        while self._out:
            try:
                sent = link.send(self._out)
            except BlockingIOError:
                break
            except OSError:
                self._out.clear()  # the read side will notice that the link is down
                break
            del self._out[:sent]
        self._mailbox.watch_writable(link.fileno(), bool(self._out))

    # ---- what the agent says

    def _serve(self) -> None:
        self._flush()
        try:
            data = self._link.socket.recv(_RECEIVE)
        except BlockingIOError:
            return
        except OSError as error:
            self._close(str(error))
            return
        if not data:
            self._close("")
            return
        try:
            for message, body in self._decoder.feed(data):
                self._read(message, body)
        except (wire.WireError, ValueError, KeyError, TypeError) as error:
            self._close(f"its agent does not speak our protocol: {error}")

    def _read(self, message: dict[str, Any], body: bytes) -> None:
        kind = message["kind"]
        if kind in self._WORDS:
            self._WORDS[kind](self, message["task"], message["attempt"], message["offset"], message, body)
        elif kind == "greeted":
            self._mailbox.put(events.HostJoined(self.host))
        elif kind == "refused":
            raise ValueError(str(message.get("reason"))[:200])
        else:
            self._seen = int(message["seq"])
            self._mailbox.put(events.from_agent(self.host, message))
            self._acknowledge_soon()

    def _read_output(self, task: str, attempt: int, offset: int, message: dict[str, Any], body: bytes) -> None:
        end = offset + len(body)

        def written() -> None:
            self._note(task, attempt, end)

        self._words.write(task, attempt, body, written)

    def _read_gap(self, task: str, attempt: int, offset: int, message: dict[str, Any], body: bytes) -> None:
        size = int(message["size"])
        self._words.lose(task, attempt, size)
        self._note(task, attempt, offset + size)

    def _read_end(self, task: str, attempt: int, offset: int, message: dict[str, Any], body: bytes) -> None:
        self._words.end(task, attempt)
        self._note(task, attempt, offset, is_complete=True)

    def _note(self, task: str, attempt: int, offset: int, is_complete: bool = False) -> None:
        # The end can be noted before the screen has taken the last bytes: neither may hide the other.
        noted, was_complete = self._offsets.get((task, attempt), (0, False))
        self._offsets[(task, attempt)] = (max(noted, offset), was_complete or is_complete)
        self._acknowledge_soon()

    def _acknowledge_soon(self) -> None:
        """Acknowledge once for everything that is read in one round."""
        if not self._is_acknowledging:
            self._is_acknowledging = True
            self._mailbox.call(self._acknowledge)

    def _acknowledge(self) -> None:
        self._is_acknowledging = False
        streams = [[task, attempt, *state] for (task, attempt), state in self._offsets.items()]
        self._offsets.clear()
        self.say("acknowledge", seen=self._seen, streams=streams)

    def _close(self, reason: str) -> None:
        self.is_open = False
        self._mailbox.forget(self._link.socket.fileno())
        last_words = self._link.close()
        if not self._is_leaving:
            self._mailbox.put(events.HostLost(self.host, reason or last_words))

    _WORDS: ClassVar[Mapping[str, Callable[..., None]]] = {
        "output": _read_output,
        "output_lost": _read_gap,
        "output_ended": _read_end,
    }
