"""Show a live run's output and events in another terminal, as `tflaunch up` does."""

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial

from tflaunch.client import runs
from tflaunch.client.control_client import ControlClient
from tflaunch.client.observer import Observer
from tflaunch.client.run_location import RunLocation
from tflaunch.core import policy
from tflaunch.errors import EXIT_INTERNAL, TflaunchError
from tflaunch.explain import summary
from tflaunch.explain.messages import Logs, messages_about
from tflaunch.store.log_reader import Line, LogReader
from tflaunch.store.log_sink import OutputSink
from tflaunch.store.log_writer import tail
from tflaunch_worker.readable import duration_words

_BETWEEN_VIEWS = 1.0  # seconds
_AT_ONCE = 1024 * 1024  # bytes that wait in memory for the terminal


def watch_to_end(
    location: RunLocation,
    say: Callable[[str], None],
    watch: Callable[[Observer], int],
    pause: Callable[[float], None] = time.sleep,
) -> int:
    """Watch a run through waits and restarts to its final end; return its exit code.

    ``watch`` follows the run until its supervisor ends, and returns the exit code; ``say`` and ``pause`` are as in
    `RunLocation`.

    Raises:
        TflaunchError: the run's supervisor was killed, or the run does not begin, or does not begin again.
    """
    while True:
        location.wait_until_begun(say, pause)
        lost: TflaunchError | None = None
        try:
            code = watch(Observer(location.directory))
        except TflaunchError as error:
            code, lost = error.exit_code, error
        if code != 0 and location.begins_again(say, pause, is_lost=lost is not None):
            continue
        if lost is not None:
            raise lost
        return code


def wait_for_end(location: RunLocation, say: Callable[[str], None], timeout: float | None) -> int:
    """Show what a run tells from now on, until its final end; return its exit code.

    Raises:
        TimeoutError: it has not ended within this number of seconds.
        TflaunchError: as `watch_to_end`.
    """
    until = None if timeout is None else time.monotonic() + timeout

    def time_left() -> float | None:
        if until is None:
            return None
        left = until - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"{location.directory.name} has not ended within {duration_words(timeout or 0)}")
        return left

    def watch(observer: Observer) -> int:
        observer.catch_up()
        return until_end(observer, say, time_left)

    def pause(seconds: float) -> None:
        time.sleep(min(time_left() or seconds, seconds))

    return watch_to_end(location, say, watch, pause)


def until_end(
    observer: Observer, say: Callable[[str], None], time_left: Callable[[], float | None] = lambda: None
) -> int:
    """Show a run until it ends; return as `last_words`; raise as it and ``time_left``."""
    while observer.outcome is runs.Outcome.LIVE:
        observer.wait(time_left())
        tell_news(observer, say)
    return last_words(observer, say)


def until_running(observer: Observer, say: Callable[[str], None], is_quiet: bool = False) -> int | None:
    """Show messages, or with ``is_quiet`` warnings, until all tasks have started.

    Return None, or the exit code if the run ended first; a failure is always told. Raises as `last_words`.
    """

    def tell(message: str) -> None:
        if not is_quiet or message.startswith("warning:"):
            say(message)

    while True:
        tell_news(observer, tell)
        if policy.gang_started(observer.job):
            return None
        if observer.outcome is not runs.Outcome.LIVE:
            return last_words(observer, say if observer.exit_code else tell)
        observer.wait()  # no limit: the user waits for it, and can press Ctrl-C


def tell_news(observer: Observer, say: Callable[[str], None]) -> None:
    """Show messages about what has happened since the last call."""
    for seen in observer.catch_up():
        logs = Logs(str(observer.logs), partial(tail, observer.logs))
        for message in messages_about(seen.before, seen.event, seen.job, seen.now, logs, seen.known):
            say(message)


def last_words(observer: Observer, say: Callable[[str], None], sink: OutputSink | None = None) -> int:
    """Show how the job ended, in ``sink`` if that shows output; return the exit code.

    Raises:
        TflaunchError: its supervisor was killed.
    """
    tell_news(observer, say)
    if observer.exit_code is None:
        raise TflaunchError(runs.describe_loss(observer.directory), EXIT_INTERNAL)
    lines = list(observer.losses)
    if observer.job.exit_code is None:
        lines.append(f"{observer.job.run} has ended with exit code {observer.exit_code}")
    else:
        logs, is_shown = observer.logs, sink is not None
        lines.append(summary.summary(observer.job, str(logs), partial(tail, logs), is_shown, observer.known))
    message = "\n".join(lines)
    if sink is None:
        say(message)
    else:
        sink.say(message, is_failure=observer.exit_code != 0)
    return observer.exit_code


class Follower:
    """Shows a run's log lines as they are written."""

    def __init__(
        self, observer: Observer, sink: OutputSink, output_error: Callable[[], OSError | None] = lambda: None
    ) -> None:
        """Prepare to follow a run.

        ``output_error`` returns why nothing can be shown any more, which ends `run`; None if it can.
        """
        self._output_error = output_error
        self._observer = observer
        self._sink = sink
        self._reader = LogReader(observer.directory, observer.logs, observer.tasks)
        self._status: ControlClient | None = None
        with suppress(runs.NoSupervisorError):
            self._status = ControlClient(observer.directory) if sink.is_live else None
        self._viewed_at = 0.0

    def run(self, tail_lines: int | None) -> int:
        """Show the last ``tail_lines`` of each task, then new lines; return the exit code.

        Without a number, all lines and all messages are shown.

        Raises:
            TflaunchError: its supervisor was killed.
            OSError: nothing can be shown any more: the reader (`| head`) is gone, for example.
        """
        self._show(self._reader.read(tail=tail_lines))
        if tail_lines is None:
            tell_news(self._observer, self._sink.say)
        else:
            self._observer.catch_up()
        self._draw()
        for _ in self._observer.changes(_BETWEEN_VIEWS if self._status is not None else None):
            self._show(self._reader.new_lines())
            tell_news(self._observer, self._sink.say)
            self._draw()
        self._show(self._reader.new_lines())
        self._show(self._reader.rest())
        return last_words(self._observer, self._sink.say, self._sink)

    def _show(self, lines: Iterable[Line]) -> None:
        """Show lines, and wait until they are written: the rest stays in the logs."""
        size = 0
        for line in lines:
            self._sink.show(line.task, line.text + b"\n", None)
            size += len(line.text) + 1
            if size >= _AT_ONCE:
                self._sink.wait_until_written()
                size = 0
        self._sink.wait_until_written()
        if (error := self._output_error()) is not None:
            raise error

    def _draw(self) -> None:
        """Update the status display, at most once per second."""
        if self._status is None or time.monotonic() - self._viewed_at < _BETWEEN_VIEWS:
            return
        self._viewed_at = time.monotonic()
        try:
            self._sink.update(self._status.ask_status())
        except runs.NoSupervisorError:
            self._status = None
