"""Serve calls of the supervisor, answered over their link or lost with it."""

from __future__ import annotations

from typing import Any, Callable, Container

from tflaunch_worker.agent.supervisor_link import SupervisorLink

ABOUT_CALLS = ("tell_call", "end_call")
"""The kinds of messages about an earlier call."""

Serve = Callable[["Call", "dict[str, Any]"], None]
"""Serves a call, given its checked message, whose ``body`` holds the bytes that it carries."""


def _ignore(*_: object) -> None:
    """Do nothing: most calls hold nothing, and take no further input."""


class Call:
    """A call that may be answered; nothing is sent once it was answered, or has ended.

    ``when_ended`` is called when the supervisor awaits the answer no longer; ``when_told`` takes further input.
    """

    def __init__(self, number: int, calls: Calls, kind: str) -> None:
        self.kind = kind
        self.when_ended: Callable[[], None] = _ignore
        self.when_told: Callable[[dict[str, Any]], None] = _ignore
        self._number = number
        self._calls = calls

    @property
    def is_open(self) -> bool:
        """Whether an answer is awaited."""
        return self._calls.open.get(self._number) is self

    def tell(self, body: bytes = b"", /, **fields: object) -> None:
        """Send a part of the answer; more will follow."""
        if self.is_open:
            self._calls.link.answer("told", body, call=self._number, **fields)

    def answer(self, body: bytes = b"", /, **fields: object) -> None:
        """Send the answer, or its last part."""
        if self.is_open:
            del self._calls.open[self._number]
            self._calls.link.answer("answered", body, call=self._number, **fields)


class Calls:
    """The calls that came over the current link and are not answered yet, by number."""

    def __init__(self, link: SupervisorLink) -> None:
        self.link = link
        self.open: dict[int, Call] = {}

    def served_by(self, serve: Serve) -> Callable[[dict[str, Any]], None]:
        """Return the function that obeys a call, which ``serve`` serves."""

        def obey(message: dict[str, Any]) -> None:
            number = message["call"]
            if number in self.open:
                raise ValueError(f"call {number} is open")
            call = self.open[number] = Call(number, self, message.get("kind", ""))
            serve(call, message)

        return obey

    def tell(self, message: dict[str, Any]) -> None:
        """Pass further input to a call, unless it is answered."""
        if message["call"] in self.open:
            self.open[message["call"]].when_told(message)

    def end(self, message: dict[str, Any]) -> None:
        """End a call whose answer the supervisor awaits no longer."""
        call = self.open.pop(message["call"], None)
        if call is not None:
            call.when_ended()

    def refuse(self, message: dict[str, Any], reason: str) -> bool:
        """Refuse a call with the reason; return False if the message is not about a call."""
        number = message.get("call")
        if type(number) is not int or number < 1:
            return False
        is_about = message["kind"] in ABOUT_CALLS
        call = self.open.get(number) if is_about else self.open.setdefault(number, Call(number, self, ""))
        if call is not None:
            if is_about:
                call.when_ended()
            call.answer(refused=reason)
        return True

    def refuse_all(self, kinds: Container[str], reason: str) -> None:
        """Refuse all open calls of these kinds, with the reason."""
        for call in [call for call in self.open.values() if call.kind in kinds]:
            call.answer(refused=reason)

    def end_all(self) -> None:
        """End all calls: their link is lost, or another supervisor begins."""
        while self.open:
            self.open.popitem()[1].when_ended()
