"""The launcher's side of looking at files that stay on one host: one request at a time, answered or lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple


class FileRequest(NamedTuple):
    """A request for files that stay on the host: ``tell`` gets the answer and its body, or None if the link is lost."""

    kind: str
    about: dict[str, Any]
    answer: str
    tell: Callable[[dict[str, Any] | None, bytes], None]

    def is_answered_by(self, message: dict[str, Any]) -> bool:
        """Return whether a message is the answer."""
        known = {name: self.about[name] for name in ("task", "attempt", "name", "offset") if name in self.about}
        return bool(message["kind"] == self.answer and known.items() <= message.items())


class FileRequests:
    """The request that waits for the answer of one agent, if any."""

    def __init__(self, ask: Callable[..., bool]) -> None:
        """Send messages by ``ask(kind, **fields)``, which returns whether the agent is connected."""
        self._ask = ask
        self._waiting: FileRequest | None = None

    def send(self, request: FileRequest) -> None:
        """Ask for the list of a task's files, or for a part of one; an earlier request must be answered."""
        self._waiting = request
        if not self._ask(request.kind, **request.about):
            self.take(None, b"")

    def forget(self) -> None:
        """Answer the request, if there is one, with None: the link is lost."""
        self.take(None, b"")

    def are_answered_by(self, message: dict[str, Any]) -> bool:
        """Return whether a message of the agent is the answer that is waited for."""
        return self._waiting is not None and self._waiting.is_answered_by(message)

    def take(self, message: dict[str, Any] | None, body: bytes) -> None:
        """Pass on the answer, None if it is lost with the link."""
        request, self._waiting = self._waiting, None
        if request is not None:
            request.tell(message, body)
