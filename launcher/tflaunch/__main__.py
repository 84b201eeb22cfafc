"""Entry point of `tflaunch` and `python -m tflaunch`."""

import gc
import os
import sys


def main() -> None:
    """Run the command line and exit with its code."""
    _open_missing_streams()
    # Objects made at startup stay alive; collecting garbage among them would take a tenth of the startup time.
    gc.set_threshold(50_000)
    try:
        from tflaunch.cli.main import run_command_line

        code = run_command_line()
    except KeyboardInterrupt:  # while modules were imported
        code = 130
    os._exit(_flush(code))  # nothing is left to clean up, and finalizing the interpreter is slow


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
    main()
