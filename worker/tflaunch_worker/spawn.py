"""Start a task's process: own session, default signals, output in one pipe."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
from typing import Any

from tflaunch_worker import linux, process_state
from tflaunch_worker.process_state import TaskSettings
from tflaunch_worker.signals import ENDING

NOT_FOUND = 127
NOT_EXECUTABLE = 126

_LONGEST_FIRST_LINE = 256  # bytes, that the kernel reads
_SETUP, _WORKDIR, _COMMAND = "setup", "workdir", "command"
"""The stages of a start, as named in the report of a process that could not start."""

_ELF = b"\x7fELF"
_PIPE_BYTES = 1024 * 1024  # a larger pipe lets a task with much output continue while the agent is busy
_F_SETPIPE_SZ = 1031  # fcntl.F_SETPIPE_SZ exists since Python 3.10
_TIOCSCTTY = 0x540E  # `termios`, which names it, would be imported by every agent


class Command:
    """A command to execute, with its environment.

    Attributes:
        env: the whole environment, without secrets.
        secrets: the rest of the environment, which only the task's own process gets.
        namespaces: descriptors of the namespaces that the process joins (see `feature.Feature.network`).
        modules: the task may be forked from a process that has imported these (see `agent.services`).
        argv0: the ``argv[0]`` that the program gets; "" for the name in ``argv``.
        search: if the task calls a function, directories in which it searches modules after its interpreter's own.
        warm: how the process with these modules outlives the run: its ``recipe`` and, in seconds, its ``idle`` limit.
        unforked: why it must not be forked this time, though it has ``modules``; "" for nothing.
        preload: how it was started: the modules imported beforehand, or "no: " and the reason; "" without any.
        stop_signal: what it gets first when it is to end.
        facts: what is reported to the supervisor about this host with the start.
    """

    def __init__(
        self, argv: list[str], env: dict[str, str], workdir: str, modules: tuple[str, ...] = (), argv0: str = ""
    ) -> None:
        self.argv = argv
        self.env = env
        self.workdir = workdir
        self.modules = modules
        self.argv0 = argv0
        self.search: list[str] | None = None
        self.secrets: dict[str, str] = {}
        self.namespaces: tuple[int, ...] = ()
        self.warm: dict[str, Any] | None = None
        self.unforked = ""
        self.preload = ""
        self.stop_signal: int = signal.SIGTERM
        self.facts: dict[str, object] = {}


class Child:
    """A new process and its pipes.

    ``output`` is the read end of its stdout and stderr. ``start_report`` becomes readable when the program runs
    (nothing to read) or could not be started (`describe_start_failure` says why).
    """

    def __init__(self, pid: int, output: int, start_report: int) -> None:
        self.pid = pid
        self.output = output
        self.start_report = start_report


def start_process(command: Command, settings: TaskSettings) -> Child:
    """Start a process that executes a command, without waiting for the program to run.

    Raises `OSError` if the system refuses another process or pipe.
    """
    output, output_end = make_output_pipe()
    try:
        nothing = os.open(os.devnull, os.O_RDONLY)
        try:
            pid, report = fork_program(command, settings, (nothing, output_end, output_end))
        finally:
            os.close(nothing)
    except OSError:
        os.close(output)
        raise
    finally:
        os.close(output_end)
    return Child(pid, output, report)


def fork_program(command: Command, settings: TaskSettings, streams: tuple[int, int, int]) -> tuple[int, int]:
    """Fork a command's process; return its pid and its ``start_report`` descriptor.

    The streams become its stdin, stdout and stderr; a terminal also becomes that of its session. Raises `OSError` if
    the system refuses another process or pipe.
    """
    report, report_end = os.pipe()
    agent = os.getpid()
    # Until the fork has reset its dispositions, these signals would run the agent's handlers in it.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {*ENDING, signal.SIGCHLD})
    try:
        pid = os.fork()
        if pid == 0:
            _become_task(command, streams, report_end, agent, settings)
    except OSError:
        os.close(report)
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.close(report_end)
    return pid, report


def find_executable(command: Command) -> str:
    """Return the path of a command's program; "" for a missing one or a script."""
    path = find_program(command)
    return path if _start_of(path).startswith(_ELF) else ""


def find_program(command: Command) -> str:
    """Return the path of a command's program, or script; "" for none."""
    paths = (os.path.join(command.workdir, place) for place in _places(command))
    return next((path for path in paths if os.path.isfile(path) and os.access(path, os.X_OK)), "")


def _places(command: Command) -> list[str]:
    """Return a command's paths: on its own PATH unless its name contains a slash."""
    name = command.argv[0]
    path = command.env.get("PATH", os.defpath)
    return [name] if "/" in name else [f"{place}/{name}" for place in path.split(":") if place]


def make_output_pipe() -> tuple[int, int]:
    """Return both ends of a task's output pipe, or raise `OSError`; reads never block."""
    output, output_end = os.pipe()
    try:
        fcntl.fcntl(output, _F_SETPIPE_SZ, _PIPE_BYTES)
    except OSError:
        pass  # the user's limit of pipe memory is reached; the default size suffices
    os.set_blocking(output, False)
    return output, output_end


def describe_start_failure(report: bytes, command: Command) -> tuple[int, str] | None:
    """Return (exit code, message) for a ``start_report``, or None after a success."""
    if not report:
        return None
    stage, _, number_text = report.decode("ascii").partition(" ")
    number = int(number_text)
    reason = os.strerror(number)
    if stage == _WORKDIR:
        return NOT_EXECUTABLE, f"working directory {command.workdir!r}: {reason}"
    name = command.argv[0]
    paths = (os.path.join(command.workdir, place) for place in _places(command))
    path = next(filter(os.path.exists, paths), "")
    # The kernel denies a name without a directory if PATH has one that this user may not enter; shells say "not found".
    is_missing = number == errno.ENOENT or (number == errno.EACCES and not path and "/" not in name)
    if not is_missing:
        return NOT_EXECUTABLE, f"command {name!r} cannot be executed: {_why_refused(number, path, command) or reason}"
    if path:
        if _start_of(path).partition(b"\n")[0].endswith(b"\r"):
            remedy = "convert it, for example with dos2unix"
            return NOT_EXECUTABLE, f"command {name!r} cannot be executed: it has line endings of Windows; {remedy}"
        return NOT_FOUND, f"command {name!r}: the interpreter that its first line names does not exist"
    is_sentence = " " in name and "/" not in name.partition(" ")[0]
    remedy = "; it is one argument: remove the quotes around the whole command" if is_sentence else ""
    return NOT_FOUND, f"command not found: {name!r}{remedy}"


def _why_refused(number: int, path: str, command: Command) -> str:
    """Return why the kernel refuses a command, "" if its own reason says it all."""
    if os.path.isdir(path):
        return "it is a directory"
    if number == errno.EACCES:
        return _why_denied(path)
    start = _start_of(path) if number == errno.ENOEXEC and path else b""
    if start.startswith(_ELF):
        return "it is damaged, or for machines of another kind"
    if number == errno.ENOEXEC and path and not start.startswith(b"#!"):
        return "its first line names no interpreter, such as #!/bin/sh"
    if number == errno.E2BIG:
        words = {f"command[{place}]": word for place, word in enumerate(command.argv)}
        words.update({f"env.{name}": value for name, value in {**command.env, **command.secrets}.items()})
        sizes = {name: len(os.fsencode(word)) for name, word in words.items()}
        longest = max(sizes, key=lambda name: sizes[name])
        return f"{longest} is too long ({sizes[longest]} bytes of {sum(sizes.values())}); put it into a file"
    return ""


def _why_denied(path: str) -> str:
    """Return why this user may not execute a file; "" if only its mode forbids it.

    ``path`` is "" if the file cannot be seen.
    """
    if not path:
        return f"user {os.geteuid()} may not enter a directory on the way to it"
    if os.statvfs(path).f_flag & os.ST_NOEXEC:
        return "it is on a file system that is mounted with noexec; move it to another one"
    if os.access(path, os.X_OK):
        return "the interpreter that its first line names may not be executed"
    owner = os.stat(path).st_uid
    return (
        "" if os.geteuid() in (owner, 0) else f"it belongs to user {owner}, and user {os.geteuid()} may not execute it"
    )


def _start_of(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(_LONGEST_FIRST_LINE)
    except OSError:
        return b""


def _become_task(
    command: Command, streams: tuple[int, int, int], report: int, agent: int, settings: TaskSettings
) -> None:
    """Turn this fork into the task. Never returns."""
    stage = _SETUP
    try:
        os.setsid()
        for namespace in command.namespaces:
            linux.call_c("setns", namespace, 0)
        linux.die_with_parent(signal.SIGKILL)  # after the namespaces: a change of credentials clears it (prctl(2))
        if os.getppid() != agent:
            os._exit(NOT_EXECUTABLE)  # the agent died before the line above took effect
        process_state.reset_signals()
        for target, source in enumerate(streams):
            os.dup2(source, target)
        if os.isatty(0):
            fcntl.ioctl(0, _TIOCSCTTY, 0)  # its keys then signal the processes of this session
        settings.apply()
        stage = _WORKDIR
        os.chdir(command.workdir)
        stage = _COMMAND
        _execute(command)
    except OSError as error:
        os.write(report, f"{stage} {error.errno}".encode("ascii"))
    finally:
        os._exit(NOT_FOUND)


def _execute(command: Command) -> None:
    """Execute the program, or raise the last error, if possible another than ENOENT.

    `os.execvpe` would import a module here, which fails under a low limit of open files.
    """
    name = command.argv[0]
    failure = OSError(errno.ENOENT, "")
    for place in _places(command):
        try:
            os.execve(place, [command.argv0 or name, *command.argv[1:]], {**command.env, **command.secrets})
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            failure = error
    raise failure
