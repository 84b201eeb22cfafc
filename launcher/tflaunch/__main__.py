"""Entry point of `tflaunch` and `python -m tflaunch`."""

from __future__ import annotations

import _thread
import gc
import os
import sys
import time

TYPE_CHECKING = False  # for the reason in `__init__.py`

if TYPE_CHECKING:
    from typing import Any

_INTERRUPTED = 130
_PAUSE = 0.01  # seconds until an ignored interrupt is repeated


def main() -> None:
    """Run the command line and exit with its code."""
    terminations: list[int] = []
    _open_missing_streams()
    sys.unraisablehook = _repeat_interrupt
    # Objects made at startup stay alive; collecting garbage among them would take a tenth of the startup time.
    gc.set_threshold(50_000)
    try:
        from tflaunch import own_home

        own_home.keep_compiled_modules()
        from tflaunch_worker import process_state

        process_state.set_own_state()
        _interrupt_at_term(terminations)
        from tflaunch.cli.main import run_command_line

        code = run_command_line()
    except KeyboardInterrupt:  # while modules were imported
        code = _INTERRUPTED
    if terminations and code == _INTERRUPTED:
        code = 128 + terminations[0]
    os._exit(_flush(code))  # nothing is left to clean up, and finalizing the interpreter is slow


def _interrupt_at_term(terminations: list[int]) -> None:
    """Have the first TERM end a command as Ctrl-C does, which leaves no half of a run; append its number."""
    import signal

    def interrupt(number: int, frame: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        terminations.append(number)
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)


def _repeat_interrupt(unraisable: Any) -> None:
    """Interrupt this process again if Python has ignored Ctrl-C, as it does in the callbacks of its import locks."""
    if unraisable.exc_type is KeyboardInterrupt:
        _thread.start_new_thread(_interrupt_soon, ())
    else:
        sys.__unraisablehook__(unraisable)


def _interrupt_soon() -> None:
    import signal

    time.sleep(_PAUSE)  # the callback is over by then
    os.kill(os.getpid(), signal.SIGINT)


def _open_missing_streams() -> None:
    """Open /dev/null where stdin, stdout or stderr is closed, so that no file or socket takes its number."""
    for descriptor, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free descriptor, which is this one
            os.set_inheritable(descriptor, True)
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(descriptor, mode, encoding="utf-8", errors="replace", closefd=False))


def _flush(code: int) -> int:
    """Flush stdout and stderr; return the exit code, 125 if that failed after a success."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            pass  # the reader is gone
        except OSError:
            code = code or 125  # a full disk, which can no longer be reported here
    return code


if __name__ == "__main__":
    # `python -m` has put the working directory first, in which a module of any name may lie; or tflaunch itself.
    if not getattr(sys.flags, "safe_path", False) and sys.path[0] != os.path.dirname(os.path.dirname(__file__)):
        del sys.path[0]
    main()
