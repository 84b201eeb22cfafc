"""Run a supervisor without a terminal, which survives logout."""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from tflaunch import interrupts
from tflaunch.errors import EXIT_INTERNAL, TflaunchError
from tflaunch.interruptible import handle_signals, wait_readable
from tflaunch.store.log_sink import OutputSink
from tflaunch.store.run_dir import SUPERVISOR_LOG
from tflaunch_worker import process_state, signals
from tflaunch_worker.readable import signal_name

_BEGUN = b"."
_LONGEST_ANSWER = 8  # bytes
_FORWARDED = (signal.SIGINT, *signals.ENDING)


class Notes(OutputSink):
    """Notes a supervisor's own messages; the tasks' output is in their logs."""

    def __init__(self, tasks: Sequence[str] = ()) -> None:
        """Take no notice of the tasks."""

    def say(self, message: str, is_failure: bool = False) -> None:
        """Write a message with a timestamp."""
        stamp = time.strftime("%Y-%m-%d %H:%M:%S")
        try:
            os.write(2, "".join(f"{stamp} {line}\n" for line in message.splitlines()).encode("utf-8", "replace"))
        except OSError:
            pass  # a full disk must not end the job


@contextmanager
def launched(directory: Path, supervise: Callable[[Callable[[], None]], int]) -> Iterator[None]:
    """Supervise a run in a process of its own; enter once the run can be seen.

    Until the context is left, signals that end a run are forwarded to that process.

    ``supervise`` returns the exit code, and calls its argument once the run can be seen. Raises as `await_beginning`.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    reader, writer = os.pipe()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _FORWARDED)  # until both processes can handle it
    pid = os.fork()
    if pid == 0:
        os.setsid()
        be_supervisor(directory, supervise, writer)
    with handle_signals(_FORWARDED, lambda number, _: os.kill(pid, number)):
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.close(writer)
        # no limit: the process has closed its end, or was killed
        await_beginning(reader, lambda: os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), directory)
        os.close(reader)
        yield


def await_beginning(reader: int, wait: Callable[[], int], directory: Path) -> None:
    """Return once other processes can see a run.

    ``reader`` is what its supervisor writes to (see `be_supervisor`); ``wait`` waits for its end and returns its exit
    code, or the negative number of the signal that killed it.

    Raises:
        TflaunchError: the supervisor ended before that; says what it logged.
    """
    wait_readable([reader])  # unlike `read`, it notices every Ctrl-C
    answer = os.read(reader, _LONGEST_ANSWER)
    if answer == _BEGUN:
        return
    exit_code = wait()
    if answer:
        exit_code = int(answer)  # a program that ignores SIGCHLD does not learn it by waiting
    if exit_code < 0:
        raise TflaunchError(f"the supervisor was killed by {signal_name(-exit_code)}", EXIT_INTERNAL)
    log = directory / SUPERVISOR_LOG
    said = log.read_text("utf-8", "replace").strip() if log.exists() else ""
    raise TflaunchError(said or "the supervisor ended without a message", exit_code or EXIT_INTERNAL)


def be_supervisor(
    directory: Path, supervise: Callable[[Callable[[], None]], int], ready: int | None = None, kept: Sequence[int] = ()
) -> NoReturn:
    """Survive a logout, supervise, and exit with the exit code.

    ``supervise`` is as in `launched`; ``ready`` gets a dot then, or else the exit code, for `await_beginning`;
    ``kept`` are other descriptors that stay open.
    """

    def tell(answer: bytes) -> None:
        nonlocal ready
        if ready is not None:
            os.write(ready, answer)
            os.close(ready)
            ready = None

    code, came = EXIT_INTERNAL, list[int]()
    try:
        process_state.set_own_state([*kept, *([] if ready is None else [ready])])
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        interrupts.repeat_ignored_interrupts()
        came = interrupts.interrupt_at_end()
        _redirect(directory / SUPERVISOR_LOG)
        code = supervise(lambda: tell(_BEGUN))
    except TflaunchError as error:
        os.write(2, f"{error}\n".encode("utf-8", "replace"))
        code = error.exit_code
    except KeyboardInterrupt:
        os.write(2, b"interrupted\n")
        code = 128 + (came[0] if came else signal.SIGINT)
    except BaseException:  # noqa: BLE001 - the only place that can report it
        sys.excepthook(*sys.exc_info())
        sys.stderr.flush()
    finally:
        try:
            tell(b"%d" % code)
        finally:
            os._exit(code)


def _redirect(log: Path) -> None:
    nothing = os.open(os.devnull, os.O_RDONLY)
    notes = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for source, target in ((nothing, 0), (notes, 1), (notes, 2)):
        os.dup2(source, target)
    os.close(nothing)
    os.close(notes)
