"""Making a fork of the zygote what the interpreter would have become, had it been started with a command.

What the fork still has of the zygote is replaced: session, descriptors, working directory, environment, what /proc
shows of both, random numbers, threads of OpenBLAS, and the module ``__main__``.

Standard library only, Python >= 3.8: this module runs on hosts.
"""

from __future__ import annotations

import builtins
import ctypes
import importlib.machinery
import os
import signal
import socket
import sys
import threading
import types

from tflaunch_worker import linux, process_title
from tflaunch_worker.forkserver import program_source

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

_NOT_FOUND = 127
OWN = "tflaunch_worker"
"""Our own package, of which a program finds nothing."""

_IGNORE_COOKIE = 0x0800  # PyCF_IGNORE_COOKIE: a text has no encoding of its own
_DECIDE_THREADS = ("OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS")


def become(request: dict[str, Any], output: int, report: socket.socket, agent: int, said: bytes) -> None:
    """Be the task and run its program; the interpreter ends in its own way when this has returned or raised.

    Args:
        request: ``argv``, ``env``, ``workdir`` as of a task.
        output: where the task writes to.
        report: tells the agent who this is, waits for its word, and reports like `spawn.start` why it cannot start.
        agent: the process that must be the parent.
        said: what the imports wrote.
    """
    argv, env = request["argv"], request["env"]
    stage = "setup"
    try:
        linux.die_with_parent(signal.SIGKILL)
        if os.getppid() != agent:
            os._exit(_NOT_FOUND)  # the agent died before the line above took effect
        os.setsid()
        report.sendall(f"pid {os.getpid()}\n".encode("ascii"))
        if not report.recv(1):
            os._exit(_NOT_FOUND)  # the task is not wanted any more
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(output)
        stage = "workdir"
        os.chdir(request["workdir"])
        os.environ.clear()
        os.environ.update(env)
        process_title.show(argv, env)
    except OSError as error:
        try:
            report.sendall(f"{stage} {error.errno}".encode("ascii"))
        finally:
            os._exit(_NOT_FOUND)
    report.close()
    _be_somebody_else(env)
    while said:
        said = said[os.write(2, said) :]
    _run(argv)


def _be_somebody_else(env: dict[str, str]) -> None:
    """Change what a fork has in common with the others: Python's own random numbers have been seeded anew already."""
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()
    set_native_id = getattr(threading.main_thread(), "_set_native_id", None)
    if set_native_id is not None:
        set_native_id()
    _give_back_threads(env)


def _give_back_threads(env: dict[str, str]) -> None:
    """Let OpenBLAS have as many threads as it would have taken by itself."""
    count = len(os.sched_getaffinity(0))
    for name in _DECIDE_THREADS:
        first = env.get(name, "").partition(",")[0].strip()
        if first.isdecimal() and int(first) > 0:
            count = int(first)
            break
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
        rows = [line.rstrip("\n").split(None, 5) for line in file if "openblas" in line]
    for path in {row[5] for row in rows if len(row) > 5}:
        library = ctypes.CDLL(path)
        for name in ("openblas_set_num_threads", "scipy_openblas_set_num_threads"):
            for suffix in ("", "64_", "_"):
                function: Callable[..., Any] | None = getattr(library, name + suffix, None)
                if function is not None:
                    function(ctypes.c_int(count))


def _run(argv: list[str]) -> None:
    """Run the program as ``__main__``."""
    program = program_source.of(argv)
    assert program is not None
    kind, place = program
    name, arguments = argv[place], argv[place + 1 :]
    if hasattr(sys, "orig_argv"):
        sys.orig_argv[:] = argv
    for module in [module for module in sys.modules if module == OWN or module.startswith(f"{OWN}.")]:
        del sys.modules[module]  # the program may have another version of it
    main = types.ModuleType("__main__")
    main.__dict__.update(__loader__=importlib.machinery.BuiltinImporter, __annotations__={}, __builtins__=builtins)
    sys.modules["__main__"] = main
    is_safe = getattr(sys.flags, "safe_path", False)
    if kind == program_source.MODULE:
        if not is_safe:
            sys.path.insert(0, os.getcwd())
        sys.argv[:] = ["-m", *arguments]
        _run_module(name)
    elif kind == program_source.TEXT:
        if not is_safe:
            sys.path.insert(0, "")
        sys.argv[:] = ["-c", *arguments]
        _run_text(name)
    else:
        if not is_safe:
            sys.path.insert(0, os.path.dirname(os.path.realpath(name)))
        sys.argv[:] = [name, *arguments]
        _run_script(name)


def _run_script(name: str) -> None:
    """Have the interpreter do what it does with a script, so that it also ends and complains as it always does."""
    path = os.path.join(os.getcwd(), name) if sys.version_info >= (3, 9) else name
    libc = ctypes.CDLL(None, use_errno=True)
    libc.fopen.restype = ctypes.c_void_p
    file = libc.fopen(os.fsencode(path), b"rbe")
    if not file:
        number = ctypes.get_errno()
        sys.stderr.write(f"{sys.executable}: can't open file {path!r}: [Errno {number}] {os.strerror(number)}\n")
        raise SystemExit(2)
    run: Callable[..., int] = ctypes.pythonapi.PyRun_SimpleFileExFlags
    _end_after(run(ctypes.c_void_p(file), os.fsencode(path), ctypes.c_int(1), None))


class _CompilerFlags(ctypes.Structure):
    """CPython's PyCompilerFlags."""

    _fields_ = (("flags", ctypes.c_int), ("feature_version", ctypes.c_int))


def _run_text(text: str) -> None:
    flags = _CompilerFlags(_IGNORE_COOKIE if sys.version_info >= (3, 9) else 0, sys.version_info.minor)
    if sys.version_info >= (3, 13):  # there tracebacks show its lines
        import linecache

        lines = [f"{line}\n" for line in text.splitlines()]
        linecache.cache["<string>"] = (len(text), None, lines, "<string>")
    run: Callable[..., int] = ctypes.pythonapi.PyRun_SimpleStringFlags
    _end_after(run(text.encode("utf-8", "surrogateescape"), ctypes.byref(flags)))


def _end_after(result: int) -> None:
    """End like the interpreter after an exception that it has shown; one that interrupts lets it die of SIGINT."""
    if result != 0 and not isinstance(getattr(sys, "last_value", None), KeyboardInterrupt):
        raise SystemExit(1)


def _run_module(name: str) -> None:
    """Do what the interpreter does with `-m`; an exception leaves no trace of us in what is printed."""
    import runpy

    try:
        runpy._run_module_as_main(name)  # type: ignore[attr-defined]  # noqa: SLF001 - as the interpreter does
    except SystemExit:
        raise
    except BaseException as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_globals is globals():
            trace = trace.tb_next
        error = error.with_traceback(trace)
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, trace
        sys.last_exc = error  # type: ignore[attr-defined]  # the one name that is left since Python 3.12
        sys.excepthook(type(error), error, trace)
        sys.excepthook = lambda *_: None  # it has been shown: what is left to do is the interpreter's end
        raise
