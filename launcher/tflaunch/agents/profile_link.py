"""The launcher's side of profiling tasks of one host: profiles, each known to the agent by a number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from tflaunch.printable import printable
from tflaunch_worker import fields
from tflaunch_worker.agent.left_files import PART
from tflaunch_worker.agent.profiles import MOST_BYTES

KINDS = frozenset({"profiled", "profile_read"})
"""The kinds of the agent's messages."""

_LINK_LOST = "the link to its host is lost"
_LONGEST_PROBLEM = 500


class Receiver(Protocol):
    """Takes one profile."""

    def take(self, data: bytes) -> str:
        """Take the next bytes; return why they cannot be stored, or ""."""

    def end(self, problem: str) -> None:
        """Everything has been taken, unless there is a problem; no other call follows."""


class _Profile:
    def __init__(self, receiver: Receiver) -> None:
        self.receiver = receiver
        self.size: int | None = None
        self.received = 0


class ProfileLink:
    """The profiles of tasks of one host."""

    def __init__(self, ask: Callable[..., bool]) -> None:
        """Send messages by ``ask(kind, **fields)``, which returns whether the agent is connected."""
        self._ask = ask
        self._last = 0
        self._profiles: dict[int, _Profile] = {}

    def begin(self, task: str, attempt: int, seconds: float, receiver: Receiver) -> Callable[[], None]:
        """Have a task profiled; return a function that ends this, after which the receiver is not called again.

        Args:
            task: its name.
            attempt: its attempt.
            seconds: how long.
            receiver: gets the profile.
        """
        self._last += 1
        number = self._last
        self._profiles[number] = _Profile(receiver)

        def end() -> None:
            if self._profiles.pop(number, None) is not None:
                self._ask("end_profile", request=number)

        if not self._ask("profile_task", request=number, task=task, attempt=attempt, seconds=seconds):
            self._end(number, _LINK_LOST)
        return end

    def forget(self) -> None:
        """End all profiles: the link is lost, and the agent does the same."""
        for number in list(self._profiles):
            self._end(number, _LINK_LOST)

    def take(self, message: dict[str, Any], body: bytes) -> None:
        """Take a message of the agent.

        Raises:
            ValueError: it is malformed, or about a profile that was not requested.
        """
        number = fields.integer(message, "request", 1, self._last)
        profile = self._profiles.get(number)
        if message["kind"] == "profiled":
            problem = printable(fields.text(message, "problem"), _LONGEST_PROBLEM)
            size = fields.integer(message, "size", 0, MOST_BYTES)
            if profile is not None:
                self._take_size(number, profile, size, problem)
        elif profile is not None:
            self._take_part(number, profile, fields.integer(message, "offset"), body)

    def _take_size(self, number: int, profile: _Profile, size: int, problem: str) -> None:
        if profile.size is not None:
            raise ValueError("it finishes a profile twice")
        profile.size = size
        if problem or not size:
            self._end(number, problem or "its profile is empty")
        else:
            self._ask("read_profile", request=number, offset=0)

    def _take_part(self, number: int, profile: _Profile, offset: int, data: bytes) -> None:
        if profile.size is None or offset != profile.received:
            raise ValueError("it sends a part of a profile that was not requested")
        if len(data) not in (0, min(PART, profile.size - offset)):
            raise ValueError("it sends a part of a profile of another length")
        problem = profile.receiver.take(data) if data else "its host cannot read its profile any more"
        profile.received += len(data)
        if problem or profile.received == profile.size:
            self._end(number, problem)
            self._ask("end_profile", request=number)
        else:
            self._ask("read_profile", request=number, offset=profile.received)

    def _end(self, number: int, problem: str) -> None:
        profile = self._profiles.pop(number, None)
        if profile is not None:
            profile.receiver.end(problem)
