"""Start one host's agent or reconnect to it, in threads that may block."""

from collections.abc import Callable

from tflaunch.mailbox import Mailbox
from tflaunch.transport.base import AgentConnector, AgentGoneError, Link, LinkError
from tflaunch_worker.feature import describe_error

_FIRST_WAIT, _LONGEST_WAIT = 0.25, 2.0  # seconds between attempts to restore a link
STEADY = 5.0
"""Seconds that a link must last for the next reconnect to start without a delay."""


class Reconnector:
    """Opens links. A newer call or `stop` cancels whatever is still in progress."""

    def __init__(
        self,
        connector: AgentConnector,
        mailbox: Mailbox,
        run_in_thread: Callable[[Callable[[], None]], object],
        found: Callable[[Link], None],
    ) -> None:
        """Prepare to connect; ``found`` takes the link, in the supervisor's thread."""
        self._connector = connector
        self._mailbox = mailbox
        self._run_in_thread = run_in_thread
        self._found = found
        self._effort = 0
        self._wait = _FIRST_WAIT
        self._found_at: float | None = None

    def start(self, failed: Callable[[str], None]) -> None:
        """Start the agent; ``failed`` takes the reason if that is not possible."""
        self._seek(self._connector.open, lambda error: failed(_reason(error)))

    def find(self, gone: Callable[[str], None], failed: Callable[[str], None]) -> None:
        """Retry until the agent is found.

        Args:
            gone: takes the last line of the agent's log if it has exited.
            failed: takes the reason why it cannot be reached, whenever that is another one.
        """
        when = self._mailbox.now()
        if self._found_at is None or when - self._found_at >= STEADY:
            self._wait = _FIRST_WAIT
        else:  # back off from a host that accepts every link and drops it at once
            when += self._next_wait()
        self._look_at(when, gone, failed)

    def find_or_start(self, failed: Callable[[str], None]) -> None:
        """Look for the agent once, and start it if it is not found."""
        self._seek(self._connector.resume, lambda _: self.start(failed))

    def explain(self, reason: str, failed: Callable[[str], None]) -> None:
        """Find out why an agent hung up before its first message, beyond ``reason``."""

        def look() -> Link:
            self._connector.resume().close()
            raise LinkError(reason)

        def tell(error: Exception) -> None:  # if it is not gone, the first reason is more specific
            failed((isinstance(error, AgentGoneError) and str(error)) or reason)

        self._seek(look, tell)

    def stop(self) -> None:
        """Cancel everything in progress."""
        self._effort += 1

    def _look_at(
        self, when: float, gone: Callable[[str], None], failed: Callable[[str], None], known: str = ""
    ) -> None:
        """Look for the agent at ``when``; ``known``: why it was not reached before."""

        def again(error: Exception) -> None:
            if isinstance(error, AgentGoneError):
                gone(str(error))
                return
            reason = _reason(error)
            if reason != known:
                failed(reason)
            self._look_at(self._mailbox.now() + self._next_wait(), gone, failed, reason)

        if when <= self._mailbox.now():
            self._seek(self._connector.resume, again)
            return
        effort, resume = self._effort, self._connector.resume
        self._mailbox.call_at(when, lambda: self._seek(resume, again) if effort == self._effort else None)

    def _next_wait(self) -> float:
        wait, self._wait = self._wait, min(self._wait * 2, _LONGEST_WAIT)
        return wait

    def _seek(self, reach: Callable[[], Link], failed: Callable[[Exception], None]) -> None:
        """Call ``reach`` in another thread, and use its link or its error in this one."""
        self._effort += 1
        effort = self._effort

        def use(found: Link | Exception) -> None:
            if isinstance(found, Exception):
                if effort == self._effort:
                    failed(found)
            elif effort != self._effort:
                found.close()
            else:
                self._found_at = self._mailbox.now()
                self._found(found)

        def work() -> None:
            if effort != self._effort:
                return  # cancelled before this thread has run
            try:
                found: Link | Exception = reach()
            except Exception as error:  # noqa: BLE001 (see `_reason`)
                found = error
            self._mailbox.call(lambda: use(found))

        self._run_in_thread(work)


def _reason(error: Exception) -> str:
    """Return why a host is not reached.

    It may also be a fault in the code of a connector, which its thread would hide.
    """
    return str(error) if isinstance(error, LinkError) else describe_error(error)
