"""The step from a zygote's fork to a task: a new identity, then its ``__main__``."""

from __future__ import annotations

import builtins
import ctypes
import importlib.machinery
import mmap
import os
import signal
import socket
import sys
import types
from typing import Any, Callable, Iterable, Mapping

from tflaunch_worker import linux
from tflaunch_worker.features import program_source
from tflaunch_worker.features.preload.source_checks import PRELOAD
from tflaunch_worker.socket_messages import receive_message

_OWN_PACKAGE = __name__.partition(".")[0]
_NOT_FOUND = 127
_DECIDE_THREADS = ("OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS")
_PR_SET_MM, _PR_SET_MM_MAP = 35, 14
_MAP_FAILED = ctypes.c_void_p(-1).value


def become_task(request: dict[str, Any], output: int, report: socket.socket, agent: int, import_output: bytes) -> None:
    """Become the task and run its program; the interpreter then ends as usual.

    ``report`` sends the agent our pid, receives its permission and the task's secrets, and reports a failed start like
    `spawn`; the process ``agent`` must be the parent; the task writes ``import_output`` as its own.
    """
    argv, env = request["argv"], request["env"]
    stage = "setup"
    try:
        linux.die_with_parent(signal.SIGKILL)
        if os.getppid() != agent:
            os._exit(_NOT_FOUND)  # the agent died before the line above took effect
        os.setsid()
        # The agent gets the pid from the task itself, before anything of the user's runs: whoever stops the task from
        # here on has a process to signal.
        report.sendall(f"pid {os.getpid()} {env[PRELOAD]}\n".encode("utf-8", "replace"))
        try:
            env = {**env, **receive_message(report)[0]["secrets"]}
        except EOFError:
            os._exit(_NOT_FOUND)  # the task was cancelled
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(output)
        stage = "workdir"
        os.chdir(request["workdir"])
        stage = "setup"
        os.environ.clear()
        os.environ.update(env)
        set_process_title(argv, env)
    except OSError as error:
        try:
            report.sendall(f"{stage} {error.errno}".encode("ascii"))
        finally:
            os._exit(_NOT_FOUND)
    report.close()
    reseed()
    restore_openblas_threads(env)
    while import_output:
        import_output = import_output[os.write(2, import_output) :]
    run_program(argv)


def reseed() -> None:
    """Reseed NumPy's random numbers in this fork; Python reseeds its own at a fork."""
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()


def restore_openblas_threads(env: dict[str, str]) -> None:
    """Restore OpenBLAS' default number of threads; the zygote imports it with one."""
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
            for suffix in ("", "64_"):  # "_" ends the name of Fortran's function, which takes an address
                function: Callable[..., Any] | None = getattr(library, name + suffix, None)
                if function is not None:
                    function(ctypes.c_int(count))


def run_program(argv: list[str]) -> None:
    """Run a Python command's program as ``__main__``, as its interpreter would run it."""
    program = program_source.find_program(argv)
    assert program is not None
    kind, index = program
    name, arguments = argv[index], argv[index + 1 :]
    if hasattr(sys, "orig_argv"):
        sys.orig_argv[:] = argv
    for module in [module for module in sys.modules if module.partition(".")[0] == _OWN_PACKAGE]:
        del sys.modules[module]  # the program may use another version of it
    main = types.ModuleType("__main__")
    main.__dict__.update(__loader__=importlib.machinery.BuiltinImporter, __annotations__={}, __builtins__=builtins)
    sys.modules["__main__"] = main
    if kind == program_source.MODULE:
        first, directory = "-m", os.getcwd()
    elif kind == program_source.TEXT:
        first, directory = "-c", ""
    else:
        first, directory = name, os.path.dirname(os.path.realpath(name))
    sys.argv[:] = [first, *arguments]
    if not getattr(sys.flags, "safe_path", False):
        sys.path.insert(0, directory)
    try:
        if kind == program_source.MODULE:
            import runpy  # as late as the interpreter does: programs may look into sys.modules

            runpy._run_module_as_main(name)  # type: ignore[attr-defined]  # noqa: SLF001 - as the interpreter does
        elif kind == program_source.TEXT:
            exec(_compile_text(name), main.__dict__)  # noqa: S102 - the task's own program
        else:
            try:
                exec(_compile_script(name, main.__dict__), main.__dict__)  # noqa: S102 - the task's own program
            finally:
                _flush_output()  # as the interpreter does after a script, before it shows an exception
    except SystemExit:
        raise
    except BaseException as error:
        _hide_own_frames(error)
        raise


def _compile_script(name: str, namespace: dict[str, Any]) -> types.CodeType:
    path = os.path.join(os.getcwd(), name) if sys.version_info >= (3, 9) else name
    loader = importlib.machinery.SourceFileLoader("__main__", path)
    namespace.update(__loader__=loader, __file__=path, __cached__=None)
    with open(path, "rb") as file:
        return compile(file.read(), path, "exec", dont_inherit=True)


def _compile_text(text: str) -> types.CodeType:
    if sys.version_info >= (3, 13):  # tracebacks show the lines of the text since 3.13
        import linecache  # likewise

        lines = [f"{line}\n" for line in text.splitlines()]
        linecache.cache["<string>"] = (len(text), None, lines, "<string>")
    return compile(text, "<string>", "exec", dont_inherit=True)


def _flush_output() -> None:
    for stream in (sys.stderr, sys.stdout):
        try:
            stream.flush()
        except Exception:  # noqa: S110 - as the interpreter does
            pass  # closed, or replaced by the program


def _hide_own_frames(error: BaseException) -> None:
    """Hide this package's frames in the interpreter's traceback of an exception."""
    trace, hook = error.__traceback__, sys.excepthook
    while trace is not None and trace.tb_frame.f_globals is globals():
        trace = trace.tb_next

    def show_exception(kind: type[BaseException], value: BaseException, _: types.TracebackType | None) -> None:
        sys.last_traceback = trace
        hook(kind, value.with_traceback(trace), trace)

    sys.excepthook = show_exception


# ---- what /proc shows


class _Map(ctypes.Structure):
    """The kernel's struct prctl_mm_map."""

    _fields_ = (
        *((name, ctypes.c_uint64) for name in ("start_code", "end_code", "start_data", "end_data", "start_brk", "brk")),
        *((name, ctypes.c_uint64) for name in ("start_stack", "arg_start", "arg_end", "env_start", "env_end")),
        ("auxv", ctypes.c_void_p),
        ("auxv_size", ctypes.c_uint32),
        ("exe_fd", ctypes.c_uint32),
    )


def set_process_title(argv: list[str], env: Mapping[str, str]) -> None:
    """Make /proc/PID/cmdline and /proc/PID/environ of this process show these values.

    `ps` shows the command line; the agent uses the environment to find processes that a task has left behind.

    Raises:
        OSError: the kernel was built without CHECKPOINT_RESTORE, or memory is exhausted.
    """
    words, variables = _block(argv), _block(f"{name}={value}" for name, value in env.items())
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = libc.sbrk.restype = ctypes.c_void_p
    size = len(words) + len(variables)
    kind = (mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    start = libc.mmap(None, ctypes.c_size_t(size), *kind, -1, ctypes.c_long(0))
    if start in (None, _MAP_FAILED):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    ctypes.memmove(start, words + variables, size)
    with open("/proc/self/stat", "rb") as file:
        fields = [int(field) for field in file.read().rpartition(b")")[2].split()[1:]]
    start_code, end_code, start_stack = fields[22:25]  # counted from the field after the state
    start_data, end_data, start_brk = fields[41:44]
    middle, end = start + len(words), start + size
    # The kernel takes all of the layout or nothing, and checks that it makes sense: what is not to change, the heap and
    # the code, is told as /proc shows it, and -1 leaves the link to the executable as it is.
    layout = (start_code, end_code, start_data, end_data, start_brk, libc.sbrk(ctypes.c_long(0)), start_stack)
    wanted = _Map(*layout, start, middle, middle, end, None, 0, 0xFFFFFFFF)
    call = (ctypes.c_ulong(_PR_SET_MM_MAP), ctypes.byref(wanted), ctypes.c_ulong(ctypes.sizeof(wanted)))
    linux.call_c("prctl", _PR_SET_MM, *call, ctypes.c_ulong(0))


def _block(words: Iterable[str]) -> bytes:
    return b"".join(os.fsencode(word) + b"\0" for word in words)
