"""Starting one process: what it inherits, and why it did not start."""

import errno
import json
import os
import resource
import shutil
import signal
import sys
from pathlib import Path

from support.disks import small_disks
from tflaunch_worker import process_state, spawn

VALUES = 0o027, (300, resource.getrlimit(resource.RLIMIT_NOFILE)[1]), os.getpriority(os.PRIO_PROCESS, 0) + 1
"""Umask, open files and niceness of a process."""
STANDARD = (1 << 31) - 1  # the C library reserves the signals after these
TELL = """
import ctypes, json, os, resource, sys
signal = ctypes.c_int()
ctypes.CDLL(None).prctl(2, ctypes.byref(signal), 0, 0, 0)
print(json.dumps({
    "argv": sys.orig_argv[:1] + sys.argv[1:], "env": dict(os.environ), "cwd": os.getcwd(),
    "session": os.getsid(0) == os.getpid(), "parent": os.getppid(), "promise": signal.value,
    "umask": os.umask(0), "niceness": os.nice(0), "files": resource.getrlimit(resource.RLIMIT_NOFILE),
    "descriptors": [number for number in os.listdir("/proc/self/fd") if os.path.exists("/proc/self/fd/" + number)],
    "input": os.readlink("/proc/self/fd/0"),
}))
"""


def _start(command: spawn.Command) -> spawn.Child:
    return spawn.start_process(command, process_state.TaskSettings(*VALUES))


def _command(*argv: str, workdir: str = "/", **env: str) -> spawn.Command:
    return spawn.Command(list(argv), {"PATH": os.environ["PATH"], **env}, workdir)


def _end(started: spawn.Child) -> tuple[str, bytes, int]:
    """Wait for a process to end, and return its output, its start report and its status."""
    report = _read(started.start_report)
    os.set_blocking(started.output, True)
    return _read(started.output).decode(), report, os.waitpid(started.pid, 0)[1]


def _read(descriptor: int) -> bytes:
    with open(descriptor, "rb") as file:
        return file.read()


def test_a_process_gets_the_terms_and_nothing_else(tmp_path: Path) -> None:
    """Session, death signal, limits, directory, argv and environment are its own; no descriptor is ours."""
    command = _command(sys.executable, "-I", "-S", "-c", TELL, "two words", "", workdir=str(tmp_path), NAME="värde")
    command.argv0 = "called so"
    inherited = {str(number) for number in range(3, 256) if _is_inheritable(number)}
    output, report, status = _end(_start(command))
    assert (report, status) == (b"", 0), output
    told = json.loads(output)
    assert set(told.pop("descriptors")) - inherited == {"0", "1", "2"}
    assert told == {
        "argv": ["called so", "two words", ""],
        "env": {**command.env, "LC_CTYPE": "C.UTF-8"} if "LC_CTYPE" in told["env"] else command.env,
        "cwd": str(tmp_path),
        "session": True,
        "parent": os.getpid(),
        "promise": signal.SIGKILL,
        "umask": 0o027,
        "niceness": os.getpriority(os.PRIO_PROCESS, 0) + 1,
        "files": [300, resource.getrlimit(resource.RLIMIT_NOFILE)[1]],
        "input": os.devnull,
    }


def _is_inheritable(number: int) -> bool:
    try:
        return os.get_inheritable(number)
    except OSError:
        return False


def test_signals_are_at_their_defaults() -> None:
    """Whatever is ignored, handled or blocked in the process that starts it."""
    earlier = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGHUP)}
    earlier[signal.SIGTERM] = signal.signal(signal.SIGTERM, lambda *_: None)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    try:
        output, _, _ = _end(_start(_command("cat", "/proc/self/status")))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for number, handler in earlier.items():
            signal.signal(number, handler)
    status = dict(line.split(":\t", 1) for line in output.splitlines() if ":\t" in line)
    assert {name: int(status[name], 16) & STANDARD for name in ("SigBlk", "SigIgn", "SigCgt")} == {
        "SigBlk": 0,
        "SigIgn": 0,
        "SigCgt": 0,
    }


def test_why_a_process_did_not_start(tmp_path: Path) -> None:
    """Each reason has its code and its sentence."""
    broken, script, text = tmp_path / "broken", tmp_path / "script", tmp_path / "text"
    broken.write_bytes(b"\x7fELF and nothing more")
    script.write_text("#!/no/such/interpreter\n")
    text.write_text("echo\n")
    (tmp_path / "windows").write_text("#!/bin/sh\r\necho hi\r\n")
    (tmp_path / "plain").write_text("echo hi\n")
    (tmp_path / "directory").mkdir()
    (tmp_path / "denied").write_text(f"#!{text}\n")
    for path in (broken, script, tmp_path / "windows", tmp_path / "plain", tmp_path / "denied"):
        path.chmod(0o755)
    refused = {
        "broken": "it is damaged, or for machines of another kind",
        "windows": "it has line endings of Windows; convert it, for example with dos2unix",
        "plain": "its first line names no interpreter, such as #!/bin/sh",
        "directory": "it is a directory",
        "denied": "the interpreter that its first line names may not be executed",
    }
    cases = {
        ("/bin/true", str(tmp_path / "none")): (126, f"working directory '{tmp_path}/none': {_why(errno.ENOENT)}"),
        ("/bin/true", str(text)): (126, f"working directory '{text}': {_why(errno.ENOTDIR)}"),
        ("no-such-command", "/"): (127, "command not found: 'no-such-command'"),
        ("python train.py", "/"): (
            127,
            "command not found: 'python train.py'; it is one argument: remove the quotes around the whole command",
        ),
        ("./text", str(tmp_path)): (126, f"command './text' cannot be executed: {_why(errno.EACCES)}"),
        ("./script", str(tmp_path)): (
            127,
            "command './script': the interpreter that its first line names does not exist",
        ),
    }
    for name, why in refused.items():
        cases[f"./{name}", str(tmp_path)] = (126, f"command './{name}' cannot be executed: {why}")
        cases[name, "/"] = (126, f"command '{name}' cannot be executed: {why}")  # found through PATH
    for (name, workdir), expected in cases.items():
        command = _command(name, workdir=workdir)
        command.env["PATH"] = str(tmp_path)
        output, report, status = _end(_start(command))
        assert spawn.describe_start_failure(report, command) == expected
        assert (output, os.WEXITSTATUS(status)) == ("", 127)
    nowhere = _command("no-such-command", workdir="/")  # and PATH has a directory that this user may not enter
    failure = spawn.describe_start_failure(f"exec {errno.EACCES:d}".encode(), nowhere)
    assert failure == cases["no-such-command", "/"]


def test_what_a_file_system_forbids_is_no_matter_of_modes(tmp_path: Path) -> None:
    """Users are not told to change them."""
    with small_disks() as make_disk:
        program = make_disk(tmp_path / "disk", more="noexec") / "program"
        shutil.copy("/bin/true", program)
        command = _command(str(program))
        _, report, _ = _end(_start(command))
        failure = spawn.describe_start_failure(report, command)
    why = "it is on a file system that is mounted with noexec; move it to another one"
    assert failure == (126, f"command '{program}' cannot be executed: {why}")


def _why(number: int) -> str:
    return os.strerror(number)


def test_the_search_goes_on_after_a_file_that_cannot_run(tmp_path: Path) -> None:
    """As in every shell: a script without its interpreter does not hide the command of its name."""
    (tmp_path / "true").write_text("#!/no/such/interpreter\n")
    (tmp_path / "true").chmod(0o755)
    command = spawn.Command(["true"], {"PATH": f"{tmp_path}:{os.environ['PATH']}"}, "/")
    _, report, status = _end(_start(command))
    assert (report, status) == (b"", 0)


def test_too_much_for_any_process_is_explained() -> None:
    """The kernel limits the size of a command's arguments."""
    command = _command("/bin/true", "x" * 1024 * 1024)
    _, report, _ = _end(_start(command))
    failure = spawn.describe_start_failure(report, command)
    about = f"command[1] is too long ({2**20} bytes of "
    assert failure is not None
    assert failure[0] == 126
    assert failure[1].startswith(f"command '/bin/true' cannot be executed: {about}")
    command = _command("/bin/true", BIG="x" * 200_000)
    _, report, _ = _end(_start(command))
    failure = spawn.describe_start_failure(report, command)
    assert failure is not None
    assert "env.BIG is too long (200000 bytes" in failure[1]
