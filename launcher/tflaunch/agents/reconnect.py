"""Finding the agent of one host: it is started, or looked for again, in threads that may wait."""

from __future__ import annotations

from collections.abc import Callable

from tflaunch.mailbox import Mailbox
from tflaunch.transport.base import AgentConnector, AgentGone, Link, LinkError

_FIRST_WAIT, _LONGEST_WAIT = 0.25, 2.0  # seconds before another try to restore a link
STEADY = 5.0
"""Seconds that a link must last before the next one is sought without a wait."""


class Reconnector:
    """Brings links. What was begun before something newer, or before `stop`, brings nothing any more."""

    def __init__(
        self,
        way: AgentConnector,
        mailbox: Mailbox,
        run_in_thread: Callable[[Callable[[], None]], None],
        found: Callable[[Link], None],
    ) -> None:
        """Prepare to seek.

        Args:
            way: how the agent is reached.
            mailbox: calls back in the supervisor's thread.
            run_in_thread: runs a blocking function in another thread.
            found: takes the link.
        """
        self._way = way
        self._mailbox = mailbox
        self._run_in_thread = run_in_thread
        self._found = found
        self._effort = 0
        self._wait = _FIRST_WAIT
        self._not_before = 0.0
        self._found_at: float | None = None

    def start(self, failed: Callable[[str], None]) -> None:
        """Start the agent; ``failed`` takes the reason when that is impossible."""
        self._seek(lambda: self._open(failed))

    def find(self, gone: Callable[[str], None]) -> None:
        """Look for the agent until it is found; ``gone`` takes its last words when it has ended."""
        now = self._mailbox.now()
        if self._found_at is None or now - self._found_at >= STEADY:
            self._wait = _FIRST_WAIT
            self._look_at(self._not_before, gone)
        else:  # a host that takes every link and loses it at once must not keep us busy
            self._look_at(max(self._not_before, now + self._next_wait()), gone)

    def find_or_start(self, failed: Callable[[str], None]) -> None:
        """Look for the agent once, and start it if it is not there."""

        def work() -> Link | Callable[[], None]:
            try:
                return self._way.resume()
            except (AgentGone, LinkError):
                return self._open(failed)

        self._seek(work)

    def explain(self, reason: str, failed: Callable[[str], None]) -> None:
        """Find out why an agent hung up before it had said a word; ``reason`` is what is known of it."""

        def work() -> Callable[[], None]:
            words = reason
            try:
                self._way.resume().close()
            except AgentGone as gone:
                words = str(gone) or reason
            except LinkError:
                pass  # the first reason says more
            return lambda: failed(words)

        self._seek(work)

    def pause(self, until: float) -> None:
        """Look for nothing before the mailbox's clock shows ``until``."""
        self._not_before = until

    def stop(self) -> None:
        """Nothing that is under way is wanted any more."""
        self._effort += 1

    def _open(self, failed: Callable[[str], None]) -> Link | Callable[[], None]:
        try:
            return self._way.open()
        except LinkError as error:
            reason = str(error)
            return lambda: failed(reason)

    def _look_at(self, when: float, gone: Callable[[str], None]) -> None:
        """Look for the agent now, or when the clock shows ``when``."""

        def work() -> Link | Callable[[], None]:
            try:
                return self._way.resume()
            except AgentGone as ended:
                words = str(ended)
                return lambda: gone(words)
            except LinkError:
                return again

        def again() -> None:
            self._look_at(self._mailbox.now() + self._next_wait(), gone)

        if when <= self._mailbox.now():
            self._seek(work)
            return
        effort = self._effort
        self._mailbox.call_at(when, lambda: self._seek(work) if effort == self._effort else None)

    def _next_wait(self) -> float:
        wait, self._wait = self._wait, min(self._wait * 2, _LONGEST_WAIT)
        return wait

    def _seek(self, work: Callable[[], Link | Callable[[], None]]) -> None:
        """Do ``work`` in another thread; use the link that it brings, or call here what it brings instead."""
        self._effort += 1
        effort = self._effort

        def done(outcome: Link | Callable[[], None]) -> None:
            if callable(outcome):
                if effort == self._effort:
                    outcome()
            elif effort == self._effort:
                self._found_at = self._mailbox.now()
                self._found(outcome)
            else:
                outcome.close()

        def do() -> None:
            outcome = work()
            self._mailbox.call(lambda: done(outcome))

        self._run_in_thread(do)
