"""Send requests to a run's supervisor from another process."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tflaunch.client import runs
from tflaunch.client.run_location import locate_run
from tflaunch.core import policy
from tflaunch.errors import EXIT_INTERNAL, EXIT_USAGE, TflaunchError
from tflaunch.explain.run_status import Status
from tflaunch.interruptible import wait_readable
from tflaunch.records import read_record
from tflaunch_worker import linux, wire
from tflaunch_worker.readable import duration_words, printable

_PATIENCE = 10.0  # seconds for a reply, which is ample: a supervisor never blocks
_RECEIVE = 1024 * 1024


class ControlClient:
    """A connection to a supervisor."""

    def __init__(self, directory: Path) -> None:
        """Connect to the supervisor of a run, or raise `NoSupervisorError`."""
        self._directory = directory
        self._decoder = wire.Decoder()
        self._messages: list[dict[str, Any]] = []
        try:
            self._socket, self._carrier = locate_run(directory).connect_to_supervisor()
        except OSError:
            raise runs.NoSupervisorError(directory) from None

    def ask(self, kind: str, **about: Any) -> dict[str, Any]:
        """Send a request and return the reply.

        Raises:
            NoSupervisorError: the supervisor has exited.
            TflaunchError: the supervisor refuses, with the reason, or does not answer within 10 s.
        """
        self.say(kind, **about)
        return self.next_answer()

    def next_answer(self, patience: float = _PATIENCE) -> dict[str, Any]:
        """Return the next reply to the last request, as `ask` does."""
        answer = self.hear(patience)
        if answer is None:
            pid, _ = linux.peer_of(self._socket)
            there = "" if self._carrier is not None else f", or `kill -CONT {pid}` if it was stopped"
            silent = f"has not answered for {duration_words(_PATIENCE)}; try again{there}"
            raise TflaunchError(f"the supervisor of {self._directory.name} {silent}", EXIT_INTERNAL)
        if answer["kind"] == "refused":
            raise TflaunchError(str(answer.get("reason")), EXIT_USAGE)
        return answer

    def ask_status(self) -> Status:
        """Return the run's status; raises as `ask`, also if it cannot be read."""
        answer = self.ask("status")
        try:
            return read_record(Status, answer.get("status"))
        except ValueError as error:
            raise self.malformed("status", error) from None

    def malformed(self, what: str, error: ValueError) -> TflaunchError:
        """Return the error for an answer that cannot be read."""
        message = f"the supervisor of {self._directory.name} sent a malformed {what}: {printable(str(error))}"
        return TflaunchError(f"{message}; use the version of tflaunch that started the run", EXIT_INTERNAL)

    def say(self, kind: str, body: bytes = b"", /, **fields: Any) -> None:
        """Send a message; raises `NoSupervisorError` if the supervisor has exited."""
        try:
            self._socket.sendall(wire.encode({"kind": kind, **fields}, body))
        except OSError:
            raise runs.NoSupervisorError(self._directory) from None

    def hear(self, patience: float | None = None) -> dict[str, Any] | None:
        """Return the next message, None after ``patience`` seconds; raises as `say`."""
        until = None if patience is None else time.monotonic() + patience
        while not self._messages:
            left = None if until is None else max(until - time.monotonic(), 0)
            if not wait_readable([self._socket.fileno()], left):
                return None
            self._receive()
        return self._messages.pop(0)

    @property
    def descriptor(self) -> int:
        """The descriptor that is readable when more has arrived."""
        return self._socket.fileno()

    @property
    def has_message(self) -> bool:
        """Whether a message has arrived that was not heard yet."""
        return bool(self._messages)

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()
        if self._carrier is not None:
            self._carrier.kill()  # TERM does not end it if it is stopped
            self._carrier.wait()  # no limit: it gets KILL

    def _receive(self) -> None:
        try:
            data = self._socket.recv(_RECEIVE)
            self._messages += [{**message, "body": body} for message, body in self._decoder.feed(data)]
        except (OSError, wire.WireError):
            data = b""
        if not data:
            raise runs.NoSupervisorError(self._directory)


def request_stop(directory: Path, grace: float | None, number: int | None = None) -> None:
    """Request the end of a run, without waiting for it.

    ``grace``: seconds between TERM and KILL, None for the spec's value; ``number``: the signal by which the user asks
    for it in a terminal that follows the run.

    Raises:
        TflaunchError: the supervisor does not answer.
    """
    try:
        ControlClient(directory).ask("stop", grace=grace, signal=number)
    except runs.NoSupervisorError:  # it has just ended, or has not begun
        locate_run(directory).stop_unsupervised(grace)


def request_restart(directory: Path, tasks: Sequence[str]) -> list[str]:
    """Restart tasks, by default all that train; return those that cannot alone.

    Raises:
        TflaunchError: the supervisor refuses, or there is none.
    """
    plan = runs.plan_of(directory)
    try:
        ControlClient(directory).ask("restart", tasks=list(tasks))
    except runs.NoSupervisorError:
        raise runs.NoSupervisorError(directory, f"; `tflaunch rerun {directory.name}` runs it again") from None
    return [task for task in tasks if not policy.can_be_restarted_alone(plan, plan.find(task))]


def request_signal(directory: Path, number: int, tasks: Sequence[str]) -> list[str]:
    """Send a signal to tasks; return those that ran; raises as `request_restart`."""
    answer = ControlClient(directory).ask("signal", tasks=list(tasks), signal=number)
    return [str(task) for task in answer.get("tasks", tasks)]
