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
        """Prepare to connect.

        Args:
            connector: how to reach the agent.
            mailbox: calls back in the supervisor's thread.
            run_in_thread: runs a blocking function in another thread.
            found: takes the link.
        """
        self._connector = connector
        self._mailbox = mailbox
        self._run_in_thread = run_in_thread
        self._found = found
        self._effort = 0
        self._wait = _FIRST_WAIT
        self._found_at: float | None = None

    def start(self, failed: Callable[[str], None]) -> None:
        """Start the agent; ``failed`` takes the reason if that is not possible."""
        self._seek(lambda: self._open(failed))

    def find(self, gone: Callable[[str], None], failed: Callable[[str], None]) -> None:
        """Retry until the agent is found.

        Args:
            gone: takes the last line of the agent's log if it has exited.
            failed: takes the reason why it cannot be reached, whenever that is another one.
        """
        now = self._mailbox.now()
        if self._found_at is None or now - self._found_at >= STEADY:
            self._wait = _FIRST_WAIT
            self._look_at(now, gone, failed)
        else:  # back off from a host that accepts every link and drops it at once
            self._look_at(now + self._next_wait(), gone, failed)

    def find_or_start(self, failed: Callable[[str], None]) -> None:
        """Look for the agent once, and start it if it is not found."""

        def work() -> Link | Callable[[], None]:
            try:
                return self._connector.resume()
            except Exception:  # noqa: BLE001 (why it could not is of no use to anybody)
                return self._open(failed)

        self._seek(work)

    def explain(self, reason: str, failed: Callable[[str], None]) -> None:
        """Find out why an agent hung up before its first message, beyond ``reason``."""

        def work() -> Callable[[], None]:
            words = reason
            try:
                self._connector.resume().close()
            except Exception as error:  # noqa: BLE001 (see `_reason`)
                if isinstance(error, AgentGoneError):  # otherwise, the first reason is more specific
                    words = str(error) or reason
            return lambda: failed(words)

        self._seek(work)

    def stop(self) -> None:
        """Cancel everything in progress."""
        self._effort += 1

    def _open(self, failed: Callable[[str], None]) -> Link | Callable[[], None]:
        try:
            return self._connector.open()
        except Exception as error:  # noqa: BLE001 (see `_reason`)
            reason = _reason(error)
            return lambda: failed(reason)

    def _look_at(
        self, when: float, gone: Callable[[str], None], failed: Callable[[str], None], known: str = ""
    ) -> None:
        """Look for the agent at ``when``; ``known``: why it was not reached before."""

        def work() -> Link | Callable[[], None]:
            try:
                return self._connector.resume()
            except AgentGoneError as ended:
                words = str(ended)
                return lambda: gone(words)
            except Exception as error:  # noqa: BLE001 (see `_reason`)
                reason = _reason(error)
                return lambda: again(reason)

        def again(reason: str) -> None:
            if reason != known:
                failed(reason)
            self._look_at(self._mailbox.now() + self._next_wait(), gone, failed, reason)

        if when <= self._mailbox.now():
            self._seek(work)
            return
        effort = self._effort
        self._mailbox.call_at(when, lambda: self._seek(work) if effort == self._effort else None)

    def _next_wait(self) -> float:
        wait, self._wait = self._wait, min(self._wait * 2, _LONGEST_WAIT)
        return wait

    def _seek(self, work: Callable[[], Link | Callable[[], None]]) -> None:
        """Run ``work`` in another thread; use its link, or call its function in this one."""
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
            if effort != self._effort:
                return  # cancelled before this thread has run
            outcome = work()
            self._mailbox.call(lambda: done(outcome))

        self._run_in_thread(do)


def _reason(error: Exception) -> str:
    """Return why a host is not reached.

    It may also be a fault in the code of a connector, which nobody would hear of in its thread.
    """
    return str(error) if isinstance(error, LinkError) else describe_error(error)
