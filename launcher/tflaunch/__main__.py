"""Entry point of `tflaunch` and `python -m tflaunch`."""

from __future__ import annotations

import gc
import os
import sys

from tflaunch import standard_streams

_INTERRUPTED = 130


def main() -> None:
    """Run the command line and exit with its code."""
    came: list[int] = []
    standard_streams.prepare_streams()
    # Objects made at startup stay alive; collecting garbage among them would take a tenth of the startup time.
    gc.set_threshold(50_000)
    try:
        from tflaunch import interrupts

        interrupts.repeat_ignored_interrupts()
        from tflaunch_worker import process_state

        process_state.set_own_state()
        came = interrupts.interrupt_at_end()
        from tflaunch.cli.main import run_command_line

        code = run_command_line()
    except KeyboardInterrupt:  # while modules were imported
        code = _INTERRUPTED
    except MemoryError as error:  # likewise
        from tflaunch.errors import EXIT_INTERNAL, out_of_resources

        sys.stderr.write(f"tflaunch: {out_of_resources(error)}\n")
        code = EXIT_INTERNAL
    if came and code == _INTERRUPTED:
        code = 128 + came[0]
    os._exit(_flush(code))  # nothing is left to clean up, and finalizing the interpreter is slow


def _flush(code: int) -> int:
    """Flush stdout and stderr; return the exit code, or 125 if only the flush failed."""
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
