"""What a process must do itself before it becomes a task, as a program of its own.

`os.posix_spawn` starts a program without copying this process, for less than half of what a fork takes. But it cannot
ask for the kernel's promise to kill the new process with its parent (PR_SET_PDEATHSIG), nor set its limits. So it
starts a program that consists of these system calls only, and whose last one executes the task's own. Its few hundred
bytes are assembled here, as the terms of all tasks are constants in it, and lie in a file in the agent's directory:
programs that are executed from memory look like an intruder's.

Where there can be no such program, tasks are forked.

Standard library only, Python >= 3.8: this module runs on hosts.
"""

from __future__ import annotations

import fcntl
import os
import resource
import signal
import struct

NAME = "start-task"
"""The file of the program, in the agent's directory. It stays as long as the agent."""

SETUP, WORKDIR, COMMAND = "setup", "workdir", "command"
_STAGES = (SETUP, WORKDIR, COMMAND)
_REPORT = 3  # the descriptor to which the program writes what failed
_REPORT_BYTES = 2
_NOT_FOUND = 127
_PR_SET_PDEATHSIG = 1
CATCHABLE = sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})
"""The signals that a task finds at their defaults."""

_MACHINE = "x86_64"  # its calls (linux/arch/x86/entry/syscalls/syscall_64.tbl) and instructions:
_CALLS = {
    "write": 1,
    "execve": 59,
    "fcntl": 72,
    "chdir": 80,
    "umask": 95,
    "getppid": 110,
    "setsid": 112,
    "setpriority": 141,
    "prctl": 157,
    "setrlimit": 160,
    "exit_group": 231,
}
_SET_NUMBER = b"\x48\xb8"  # mov rax, 8 bytes
_SET_ARGUMENTS = (b"\x48\xbf", b"\x48\xbe", b"\x48\xba")  # mov rdi, 8 bytes; mov rsi; mov rdx
_SYSCALL = b"\x0f\x05"
_IF_NEGATIVE = b"\x48\x85\xc0\x0f\x88"  # test rax, rax; js 4 bytes
_IF_NOT_FIRST = b"\x48\x39\xf8\x0f\x85"  # cmp rax, rdi; jne 4 bytes
_SET_STAGE = b"\xbb"  # mov ebx, 4 bytes
_SAVE_FAILURE = b"\xf7\xd8\x88\x04\x24\x88\x5c\x24\x01"  # neg eax; mov [rsp], al; mov [rsp+1], bl
_FAILURE_AS_SECOND = b"\x48\x89\xe6"  # mov rsi, rsp
# A program finds on its stack how many words it has, then where each is, then its environment.
_FIRST_WORD = b"\x48\x8b\x7c\x24\x08"  # mov rdi, [rsp+8]
_SECOND_WORD = b"\x48\x8b\x7c\x24\x10"  # mov rdi, [rsp+16]
_OTHER_WORDS = b"\x48\x8d\x74\x24\x18"  # lea rsi, [rsp+24]
_ENVIRONMENT = b"\x48\x8b\x14\x24\x48\x8d\x54\xd4\x10"  # mov rdx, [rsp]; lea rdx, [rsp+rdx*8+16]

_ADDRESS = 0x400000
_HEAD = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")


class Trampoline:
    """The program, which works for the process that has made it."""

    def __init__(self, directory: str, umask: int, max_files: tuple[int, int], niceness: int) -> None:
        """Write it into a private directory.

        Args:
            directory: the directory.
            umask: the mode mask that tasks get.
            max_files: their soft and hard limit of open files.
            niceness: theirs.

        Raises:
            OSError: there can be none here.
        """
        if os.uname().machine != _MACHINE:
            raise OSError("it is not known what the program would be here")
        program = _executable(os.getpid(), umask, max_files, niceness)
        self.path = os.path.join(directory, NAME)
        file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o700)
        try:
            written = os.write(file, program)
        finally:
            os.close(file)  # no program is executed while somebody may write to it
        if written < len(program) or not os.access(self.path, os.X_OK):
            raise OSError("there is no room for it, or nothing may be executed there")

    def start(self, path: str, words: list[str], env: dict[str, str], workdir: str, output: int, report: int) -> int:
        """Start a task, and return its process.

        Args:
            path: the task's program.
            words: its command line, from its own name on.
            env: its whole environment.
            workdir: where it starts.
            output: what it writes to.
            report: what takes the reason if it does not start.

        Raises:
            OSError: this program could not be started.
        """
        actions = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_DUP2, output, 1),
            (os.POSIX_SPAWN_DUP2, output, 2),
            (os.POSIX_SPAWN_DUP2, report, _REPORT),
        ]
        return os.posix_spawn(
            self.path,
            [workdir, path, *words],
            env,
            file_actions=actions,
            setsigmask=(),
            setsigdef=CATCHABLE,
        )


def make(directory: str, umask: int, max_files: tuple[int, int], niceness: int) -> Trampoline | None:
    """Return the program with what tasks get, written into a private directory, None where there can be none."""
    try:
        return Trampoline(directory, umask, max_files, niceness)
    except OSError:
        return None


def failure(report: bytes) -> tuple[str, int] | None:
    """Return at which stage a task failed and the error's number, None for a report that this program did not write."""
    return (_STAGES[report[1]], report[0]) if len(report) == _REPORT_BYTES else None


class _Code:
    """Instructions, of which the first ones are what to do after a failure."""

    def __init__(self) -> None:
        """Have a failure reported."""
        self.text = _SAVE_FAILURE
        self.call("write", _REPORT, _FAILURE_AS_SECOND, _REPORT_BYTES)
        self.call("exit_group", _NOT_FOUND)

    def call(self, name: str, *arguments: int | bytes) -> None:
        """Make a system call; an argument that is no number is the instruction that sets it."""
        for number, argument in enumerate(arguments):
            self.text += argument if isinstance(argument, bytes) else _SET_ARGUMENTS[number] + _number(argument)
        self.text += _SET_NUMBER + _number(_CALLS[name]) + _SYSCALL

    def must(self, name: str, *arguments: int | bytes) -> None:
        """Make a system call that must not fail."""
        self.call(name, *arguments)
        self._fail(_IF_NEGATIVE)

    def must_be(self, name: str, value: int) -> None:
        """Make a system call that must give a value."""
        self.call(name)
        self.text += _SET_ARGUMENTS[0] + _number(value)
        self._fail(_IF_NOT_FIRST)

    def stage(self, name: str) -> None:
        """Say what a failure from now on is one of."""
        self.text += _SET_STAGE + struct.pack("<i", _STAGES.index(name))

    def _fail(self, condition: bytes) -> None:
        self.text += condition
        self.text += struct.pack("<i", -len(self.text) - 4)  # back to the first instruction


def _executable(agent: int, umask: int, max_files: tuple[int, int], niceness: int) -> bytes:
    """Return an executable file: headers, the limits of open files, instructions."""
    limits = struct.pack("<qq", *max_files)
    place = _ADDRESS + _HEAD.size + _SEGMENT.size
    code = _Code()
    entry = place + len(limits) + len(code.text)
    code.stage(SETUP)
    code.must("setsid")
    code.must("prctl", _PR_SET_PDEATHSIG, signal.SIGKILL)
    code.must_be("getppid", agent)  # else it died before the line above took effect
    code.must("umask", umask)
    code.must("setpriority", os.PRIO_PROCESS, 0, niceness)
    code.must("setrlimit", resource.RLIMIT_NOFILE, place)
    code.must("fcntl", _REPORT, fcntl.F_SETFD, fcntl.FD_CLOEXEC)
    code.stage(WORKDIR)
    code.must("chdir", _FIRST_WORD)
    code.stage(COMMAND)
    code.must("execve", _SECOND_WORD, _OTHER_WORDS, _ENVIRONMENT)
    size = _HEAD.size + _SEGMENT.size + len(limits) + len(code.text)
    head = _HEAD.pack(b"\x7fELF\2\1\1", 2, 62, 1, entry, _HEAD.size, 0, 0, _HEAD.size, _SEGMENT.size, 1, 0, 0, 0)
    segment = _SEGMENT.pack(1, 5, 0, _ADDRESS, _ADDRESS, size, size, 0x1000)
    return head + segment + limits + code.text


def _number(value: int) -> bytes:
    return struct.pack("<q", value)
