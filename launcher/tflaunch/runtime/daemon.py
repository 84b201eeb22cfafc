"""Run a supervisor without a terminal: it survives logout and logs to the run's directory."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from tflaunch.errors import EXIT_INTERNAL, TflaunchError
from tflaunch.explain.run_status import Status
from tflaunch.interruptible import wait_readable
from tflaunch.store.log_line import Kept
from tflaunch.store.run_dir import SUPERVISOR_LOG


class Notes:
    """Output sink for a supervisor's own messages; the tasks' output is in their logs."""

    is_live = False
    shows_output = False

    def update(self, status: Status) -> None:
        """Ignore the status: there is no display."""

    def show(self, task: str, data: bytes, kept: Kept | None) -> None:
        """Ignore the tasks' output: it is in their logs."""

    def finish(self, task: str) -> None:
        """Ignore the end of a task's output: it is in its log."""

    def say(self, message: str, is_failure: bool = False) -> None:
        """Write a message with a timestamp."""
        stamp = time.strftime("%Y-%m-%d %H:%M:%S")
        try:
            os.write(2, "".join(f"{stamp} {line}\n" for line in message.splitlines()).encode("utf-8", "replace"))
        except OSError:
            pass  # a full disk must not end the job

    def wait_until_written(self) -> None:
        """Return at once: writes are unbuffered."""

    def close(self, patience: float | None = None, limit: float | None = None) -> bool:
        """Return True: writes are unbuffered."""
        return True


def notes(tasks: Sequence[str]) -> Notes:
    """Return the output sink of a run with these tasks."""
    return Notes()


@contextmanager
def _interrupts_to(supervisor: int) -> Iterator[None]:
    earlier = signal.signal(signal.SIGINT, lambda *_: os.kill(supervisor, signal.SIGINT))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, earlier)


@contextmanager
def launched(directory: Path, supervise: Callable[[Callable[[], None]], int]) -> Iterator[None]:
    """Supervise a run in a separate process; enter the context once other terminals can see the run.

    Until the context is left, Ctrl-C is forwarded to that process, and ends the run.

    Args:
        directory: the run's.
        supervise: supervises the run and returns the exit code; calls its argument once the run can be seen.

    Raises:
        TflaunchError: the supervisor ended before that.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    reader, writer = os.pipe()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])  # until both processes can handle it
    pid = os.fork()
    if pid == 0:

        def begun() -> None:
            os.write(writer, b".")
            os.close(writer)

        def supervise_alone() -> int:
            os.close(reader)
            os.setsid()
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            return supervise(begun)

        be_supervisor(directory, supervise_alone)
    with _interrupts_to(pid):
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.close(writer)
        wait_readable([reader])  # unlike `read`, it notices every Ctrl-C
        has_begun = bool(os.read(reader, 1))
        os.close(reader)
        if not has_begun:
            _, status = os.waitpid(pid, 0)
            raise failure_of(os.waitstatus_to_exitcode(status), directory)
        yield


def failure_of(exit_code: int, directory: Path) -> TflaunchError:
    """Return the error of a supervisor that ended before its run had begun: what it logged.

    Args:
        exit_code: its exit code; if a signal killed it, the negative number of that signal.
        directory: the run's.
    """
    if exit_code < 0:
        return TflaunchError(f"the supervisor was killed by {signal.Signals(-exit_code).name}", EXIT_INTERNAL)
    log = directory / SUPERVISOR_LOG
    said = log.read_text("utf-8", "replace").strip() if log.exists() else ""
    return TflaunchError(said or "the supervisor ended without a message", exit_code or EXIT_INTERNAL)


def be_supervisor(directory: Path, supervise: Callable[[], int]) -> NoReturn:
    """Log to the run's directory, survive a logout, supervise, and exit with the exit code."""
    code = EXIT_INTERNAL
    try:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        _redirect(directory / SUPERVISOR_LOG)
        code = supervise()
    except TflaunchError as error:
        os.write(2, f"{error}\n".encode("utf-8", "replace"))
        code = error.exit_code
    except KeyboardInterrupt:
        os.write(2, b"interrupted\n")
        code = 128 + signal.SIGINT
    except BaseException:  # noqa: BLE001 - the only place that can report it
        sys.excepthook(*sys.exc_info())
        sys.stderr.flush()
    finally:
        os._exit(code)


def _redirect(log: Path) -> None:
    nothing = os.open(os.devnull, os.O_RDONLY)
    notes = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for source, target in ((nothing, 0), (notes, 1), (notes, 2)):
        os.dup2(source, target)
    os.close(nothing)
    os.close(notes)
