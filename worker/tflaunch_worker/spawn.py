"""Starting one task: a session of its own, signals at their defaults, output into one pipe.

Standard library only, Python >= 3.8: this module runs on hosts.
"""

from __future__ import annotations

import errno
import fcntl
import functools
import os
import resource
import signal

from tflaunch_worker import linux

NOT_FOUND = 127
NOT_EXECUTABLE = 126

_SETUP, _WORKDIR, _COMMAND = "setup", "workdir", "command"
"""The stages of a start, as a process reports them that could not start."""

_CATCHABLE = sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})
_ELF = b"\x7fELF"
_PIPE_BYTES = 1024 * 1024  # a larger pipe lets a chatty task run on while the agent is busy
_F_SETPIPE_SZ = 1031  # fcntl.F_SETPIPE_SZ has a name since Python 3.10


class Command:
    """What to execute: ``argv``, the whole environment, the working directory.

    ``modules``: it may be forked from a process that has imported these (see `nursery`). ``name``: what the program
    shall find as its first word, where that is not how it is found.
    """

    def __init__(
        self, argv: list[str], env: dict[str, str], workdir: str, modules: tuple[str, ...] = (), name: str = ""
    ) -> None:
        self.argv = argv
        self.env = env
        self.workdir = workdir
        self.modules = modules
        self.name = name
        self.preload = ""
        self.facts: dict[str, object] = {}  # what the supervisor should know of this host, with the start
        """How it was started: the modules that were imported for it, or "no: " and why not; "" if nobody asked."""


class Child:
    """A process just made.

    ``output`` is the read end of its stdout and stderr. ``start_report`` turns readable when the task's
    program runs in it (nothing to read) or could not (then `start_failure` says why).
    """

    def __init__(self, pid: int, output: int, start_report: int) -> None:
        self.pid = pid
        self.output = output
        self.start_report = start_report


class Terms:
    """Hold what a task gets from this host where the agent has set another value for itself.

    ``umask``: the mode mask; ``max_files``: the soft and hard limit of open files; ``niceness``.
    """

    def __init__(self, umask: int, max_files: tuple[int, int], niceness: int) -> None:
        self.umask = umask
        self.max_files = max_files
        self.niceness = niceness


def start(command: Command, terms: Terms) -> Child:
    """Have a process execute a command; never waits for the new program.

    Args:
        command: what to execute.
        terms: what it gets of the host.

    Raises:
        OSError: no process or no pipe could be made.
    """
    output, output_end = output_pipe()
    report, report_end = os.pipe()
    pid = _fork(command, output_end, report_end, terms)
    os.close(output_end)
    os.close(report_end)
    return Child(pid, output, report)


def program_of(command: Command) -> str:
    """Return the file that a command's first word means, "" when there is none or it needs another one to run."""
    name = command.argv[0]
    places = [""] if "/" in name else [f"{place}/" for place in command.env.get("PATH", os.defpath).split(":") if place]
    for place in places:
        path = os.path.join(command.workdir, place + name)
        if os.path.isfile(path) and os.access(path, os.X_OK):
            try:
                with open(path, "rb") as file:
                    return path if file.read(len(_ELF)) == _ELF else ""
            except OSError:
                return ""
    return ""


def _fork(command: Command, output: int, report: int, terms: Terms) -> int:
    """Return the new process.

    Raises:
        OSError: none could be made.
    """
    _changed_signals()  # looked up once, here: the fork would forget it
    agent = os.getpid()
    # Until the fork has its own dispositions, these would run the agent's handlers in it.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGCHLD))
    pid = os.fork()
    if pid == 0:
        _become(command, output, report, agent, terms)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return pid


def output_pipe() -> tuple[int, int]:
    """Return both ends of a pipe for a task's output; to read never waits.

    Raises:
        OSError: no pipe could be made.
    """
    output, output_end = os.pipe()
    try:
        fcntl.fcntl(output, _F_SETPIPE_SZ, _PIPE_BYTES)
    except OSError:
        pass  # the user's share of pipe memory is used up: the default size will do
    os.set_blocking(output, False)
    return output, output_end


def start_failure(report: bytes, command: Command) -> tuple[int, str] | None:
    """Return (exit code, sentence) when ``start_report`` says that the program did not start."""
    if not report:
        return None
    stage, _, number_text = report.decode("ascii").partition(" ")
    number = int(number_text)
    reason = os.strerror(number)
    if stage == _WORKDIR:
        return NOT_EXECUTABLE, f"working directory {command.workdir!r}: {reason}"
    name = command.argv[0]
    if number != errno.ENOENT:
        return NOT_EXECUTABLE, f"command {name!r} cannot be executed: {reason}"
    if "/" in name and os.path.exists(os.path.join(command.workdir, name)):
        return NOT_FOUND, f"command {name!r}: the interpreter that its first line names does not exist"
    is_sentence = " " in name and "/" not in name.partition(" ")[0]
    remedy = "; it is one word: leave the quotes around the whole command out" if is_sentence else ""
    return NOT_FOUND, f"command not found: {name!r}{remedy}"


def _become(command: Command, output: int, report: int, agent: int, terms: Terms) -> None:
    """Turn this fork into the task. Never returns."""
    stage = _SETUP
    try:
        os.setsid()
        linux.die_with_parent(signal.SIGKILL)
        if os.getppid() != agent:
            os._exit(NOT_EXECUTABLE)  # the agent died before the line above took effect
        _reset_signals()
        nothing = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((nothing, 0), (output, 1), (output, 2)):
            os.dup2(source, target)
        os.umask(terms.umask)
        os.setpriority(os.PRIO_PROCESS, 0, terms.niceness)
        resource.setrlimit(resource.RLIMIT_NOFILE, terms.max_files)
        stage = _WORKDIR
        os.chdir(command.workdir)
        stage = _COMMAND
        _execute(command)
    except OSError as error:
        os.write(report, f"{stage} {error.errno}".encode("ascii"))
    finally:
        os._exit(NOT_FOUND)


def _execute(command: Command) -> None:
    """Replace this process; a name without a slash is looked for on the task's own PATH.

    `os.execvpe` would import a module here, which a low limit of open files can make fail.

    Raises:
        OSError: why not; of several places, one that has the file but may not execute it says more.
    """
    name = command.argv[0]
    places = [""] if "/" in name else [f"{place}/" for place in command.env.get("PATH", os.defpath).split(":") if place]
    failure = OSError(errno.ENOENT, "")
    for place in places:
        try:
            os.execve(place + name, [command.name or name, *command.argv[1:]], command.env)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            failure = error
    raise failure


@functools.lru_cache(maxsize=None)
def _changed_signals() -> list[int]:
    """The signals that are not at their defaults here: the agent changes none once it starts tasks."""
    return [number for number in _CATCHABLE if signal.getsignal(number) != signal.SIG_DFL]


def _reset_signals() -> None:
    """Give the task the default dispositions: a launcher started with ``&`` has SIGINT ignored."""
    for number in _changed_signals():
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
