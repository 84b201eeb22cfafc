"""Entry point of `tflaunch` and `python -m tflaunch`."""

from __future__ import annotations

import gc
import io
import os
import select
import sys
import types

TYPE_CHECKING = False  # for the reason in `__init__.py`

if TYPE_CHECKING:
    from typing_extensions import Buffer

_INTERRUPTED = 130


def main() -> None:
    """Run the command line and exit with its code."""
    came: list[int] = []
    reserve = bytearray(4 << 20)  # what telling of a lack of memory needs
    _prepare_streams()
    # Objects made at startup stay alive; collecting garbage among them would take a tenth of the startup time.
    gc.set_threshold(50_000)
    try:
        from tflaunch import interrupts

        interrupts.repeat_ignored_interrupts()
        from tflaunch_worker import process_state

        process_state.set_own_state()
        came = interrupts.interrupt_at_end()
        _leave_out_plugins()
        from tflaunch.cli.main import run_command_line

        code = run_command_line()
    except KeyboardInterrupt:  # while modules were imported
        code = _INTERRUPTED
    except (MemoryError, SystemError, ImportError, OSError) as error:  # likewise; an import without memory raises any
        del reserve
        from tflaunch import errors

        if not (sentence := errors.out_of_resources(error)):
            raise
        sys.stderr.write(f"tflaunch: {sentence}\n")
        code = errors.EXIT_INTERNAL
    if came and code == _INTERRUPTED:
        code = 128 + came[0]
    os._exit(_flush(code))  # nothing is left to clean up, and finalizing the interpreter is slow


def _leave_out_plugins() -> None:
    """Keep pydantic from searching all metadata for plugins, which takes 20 ms.

    The documented variable comes too late to spare the import of `importlib.metadata`, and tasks would inherit it.
    """
    loader = types.ModuleType("pydantic.plugin._loader")
    loader.get_plugins = tuple  # type: ignore[attr-defined]
    sys.modules[loader.__name__] = loader


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


def _prepare_streams() -> None:
    """Open missing streams, and have stdout and stderr wait for their readers."""
    _open_missing()
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        stream.flush()
        file = io.BufferedWriter(_PatientFile(name, stream.fileno()))
        text = io.TextIOWrapper(file, stream.encoding, stream.errors, line_buffering=stream.line_buffering)
        setattr(sys, name, text)


class _PatientFile(io.FileIO):
    """A stream that other programs, which share it, may have made non-blocking.

    Python would drop what the pipe has no room for. The flag is not ours to clear: all who share the pipe share it.
    """

    def __init__(self, name: str, descriptor: int) -> None:
        super().__init__(descriptor, "w", closefd=False)
        self._name = name

    def write(self, data: Buffer) -> int:
        """Write at least a part of the data; return how many bytes."""
        try:
            while (written := super().write(data)) is None:
                select.select([], [self], [])  # no limit: as a pipe that blocks; Ctrl-C ends it
        except OSError as error:
            error.filename = error.filename or self._name
            raise
        return written


def _open_missing() -> None:
    """Open /dev/null for closed streams, so that no file or socket takes their number."""
    for descriptor, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free descriptor, which is this one
            os.set_inheritable(descriptor, True)
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(descriptor, mode, encoding="utf-8", errors="replace", closefd=False))


if __name__ == "__main__":
    # `python -m` has put the working directory first, in which a module of any name may lie; or tflaunch itself.
    if not getattr(sys.flags, "safe_path", False) and sys.path[0] != os.path.dirname(os.path.dirname(__file__)):
        del sys.path[0]
    main()
