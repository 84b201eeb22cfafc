"""The command: `tflaunch`, and `python -m tflaunch`."""

import gc
import os
import sys


def main() -> None:
    """Run the command line and exit with its code."""
    _open_missing_streams()
    # What a start makes stays: to search it for garbage again and again would be a tenth of the start.
    gc.set_threshold(50_000)
    may_start_tasks = sys.argv[1:2] in (["up"], ["run"])  # most of them on this machine
    if may_start_tasks:
        from tflaunch.transport import local

        local.start_early()
    from tflaunch.cli.main import run_command_line

    code = run_command_line()
    if may_start_tasks:
        local.dismiss_early()
    code = _flush(code)
    os._exit(code)  # nothing is left to clean up, and the interpreter's farewell takes its time


def _open_missing_streams() -> None:
    """Open /dev/null where stdin, stdout or stderr is closed: else the next file or socket would become it."""
    for descriptor, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one
            os.set_inheritable(descriptor, True)
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(descriptor, mode, encoding="utf-8", errors="replace", closefd=False))


def _flush(code: int) -> int:
    """Write what is still buffered; return the exit code, which tells if that failed."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            pass  # the reader has gone
        except OSError:
            code = code or 125  # a full disk, of which nothing can be said here any more
    return code


if __name__ == "__main__":
    main()
