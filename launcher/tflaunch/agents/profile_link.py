"""The launcher's side of profiling tasks of one host: profiles, each known to the agent by a number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tflaunch.printable import printable
from tflaunch_worker import fields
from tflaunch_worker.inspect import stack_samples

KINDS = frozenset({"profiled"})
"""The kinds of the agent's messages."""

Take = Callable[[str, str], None]
"""Takes why there is no profile, or "", and the profile as text."""

_LINK_LOST = "the link to its host is lost"
_LONGEST_PROBLEM = 500


class ProfileLink:
    """The profiles of tasks of one host."""

    def __init__(self, ask: Callable[..., bool]) -> None:
        """Send messages by ``ask(kind, **fields)``, which returns whether the agent is connected."""
        self._ask = ask
        self._last = 0
        self._awaited: dict[int, Take] = {}

    def begin(self, task: str, attempt: int, seconds: float, take: Take) -> Callable[[], None]:
        """Have a task profiled; return a function that ends this, after which ``take`` is not called any more."""
        self._last += 1
        number = self._last
        self._awaited[number] = take

        def end() -> None:
            if self._awaited.pop(number, None) is not None:
                self._ask("end_profile", request=number)

        if not self._ask("profile_task", request=number, task=task, attempt=attempt, seconds=seconds):
            self._awaited.pop(number)(_LINK_LOST, "")
        return end

    def forget(self) -> None:
        """End all profiles: the link is lost, and the agent does the same."""
        while self._awaited:
            self._awaited.popitem()[1](_LINK_LOST, "")

    def take(self, message: dict[str, Any], body: bytes) -> None:
        """Take a profile of the agent, or the reason why there is none.

        Raises:
            ValueError: it is malformed, or was not requested.
        """
        number = fields.integer(message, "request", 1, self._last)
        problem = printable(fields.text(message, "problem"), _LONGEST_PROBLEM)
        text = "" if problem else stack_samples.unpack(body)
        take = self._awaited.pop(number, None)
        if take is not None:
            take(problem, text)
