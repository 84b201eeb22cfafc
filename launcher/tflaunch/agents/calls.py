"""Call one agent: a call is answered over the link that carried it, or lost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from tflaunch import feature_faults
from tflaunch_worker import fields, wire
from tflaunch_worker.readable import printable

Take = Callable[[dict[str, Any], bytes], None]
"""Takes a message of the agent and what it carries; raises ValueError if it breaks the protocol."""

Frame = tuple[bytes, ...]
"""The pieces of a frame in order. Similar frames may share some of them."""

_LONGEST_REASON = 300  # characters

KINDS = ("told", "answered")
"""The kinds of the agent's messages."""


def _ignore(*_: object) -> None:
    """Ignore an answer, or its loss."""


def _refuse_part(message: dict[str, Any], body: bytes) -> None:
    raise ValueError("it sends a part of an answer that has only one")


class Waiter(NamedTuple):
    """What waits for an answer.

    ``answered`` takes it, and ``told`` the parts that come before. If there will be none, which may be known at once,
    ``lost`` is called with the reason instead: the link is lost, or the agent refuses the call, unless ``refused``
    takes that.
    """

    answered: Take = _ignore
    lost: Callable[[str], object] = _ignore
    told: Take = _refuse_part
    refused: Callable[[str], None] | None = None


class Begin(Protocol):
    """Begins a call of a kind, with a body and fields."""

    def __call__(self, kind: str, waiter: Waiter, body: bytes = b"", /, **about: Any) -> Call:
        """Begin it."""


class Call:
    """A call; once it is answered or lost, nothing is sent about it any more."""

    def __init__(self, calls: Calls, number: int) -> None:
        self._calls = calls
        self._number = number

    def tell(self, body: bytes = b"", /, **about: Any) -> None:
        """Send further input."""
        self._calls.send_about(self._number, "tell_call", body, **about)

    def end(self) -> None:
        """End the call: the waiter gets nothing any more, and the agent stops."""
        self._calls.send_about(self._number, "end_call")
        self._calls.withdraw(self._number)


class Calls:
    """The calls to one agent that wait for their answers."""

    def __init__(self, send: Callable[[Frame], None]) -> None:
        """Send frames with ``send``."""
        self._send = send
        self._is_open = False
        self._last = 0
        self._waiters: dict[int, Waiter] = {}
        self._withdrawn: set[int] = set()
        self._standing: list[tuple[str, Waiter]] = []

    def begin(self, kind: str, waiter: Waiter, body: bytes = b"", /, **about: Any) -> Call:
        """Send a call of a kind with these fields."""
        self._last += 1
        if self._is_open:
            self._waiters[self._last] = waiter
            self._send((wire.encode({"kind": kind, "call": self._last, **about}, body),))
        else:
            waiter.lost("there is no link")
        return Call(self, self._last)

    def keep(self, kind: str, waiter: Waiter) -> None:
        """Begin a call over each link, which gets parts of an answer and never the last."""
        self._standing.append((kind, waiter))
        if self._is_open:
            self.begin(kind, waiter)

    def open(self) -> None:
        """Begin to send: the agent has greeted over a new link."""
        self._is_open = True
        for kind, waiter in self._standing:
            self.begin(kind, waiter)

    def lose(self) -> None:
        """Lose all answers: the link is lost."""
        self._is_open = False
        self._withdrawn.clear()
        waiters, self._waiters = self._waiters, {}
        for waiter in waiters.values():
            with feature_faults.isolated():
                waiter.lost("the link was lost")

    def take(self, message: dict[str, Any], body: bytes) -> None:
        """Pass an answer, or a part of one, to its waiter.

        Raises:
            ValueError: it answers nothing that was asked, or is malformed.
        """
        number = fields.integer(message, "call", 1, self._last)
        is_last = message["kind"] == "answered"
        if number in self._withdrawn:
            if is_last:
                self._withdrawn.discard(number)
            return
        waiter = self._waiters.get(number)
        if waiter is None:
            raise ValueError("it answers what it was not asked")
        with feature_faults.isolated("", ValueError):  # which is the agent's fault
            if not is_last:
                waiter.told(message, body)
                return
            del self._waiters[number]
            try:
                if "refused" in message:
                    reason = printable(fields.text(message, "refused"), _LONGEST_REASON)
                    (waiter.refused or waiter.lost)(f"its agent refused: {reason}")
                else:
                    waiter.answered(message, body)
            except ValueError:
                waiter.lost("its agent broke the protocol")
                raise

    def send_about(self, number: int, kind: str, body: bytes = b"", /, **about: Any) -> None:
        """Send a message about a call, unless it is answered or lost."""
        if number in self._waiters:
            self._send((wire.encode({"kind": kind, "call": number, **about}, body),))

    def withdraw(self, number: int) -> None:
        """Ignore the answer to a call, unless it is answered or lost."""
        if self._waiters.pop(number, None) is not None:
            self._withdrawn.add(number)


class UserCode(Protocol):
    """The user's code, which is copied to hosts."""

    def keep(self, run: Path) -> UserCode:
        """Copy the code to the directory of a run; return the code that is read there."""

    def export(self, run: Path) -> list[tuple[Path, str]]:
        """Return the files of a full copy of the code in a run, and their paths in it."""

    def upload(self, begin: Begin, failed: Callable[[str], None]) -> Callable[[], None]:
        """Offer all of it to an agent, and send what it lacks; return what stops that.

        ``failed`` takes why a file can no longer be read.
        """
