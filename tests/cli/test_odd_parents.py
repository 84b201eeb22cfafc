"""What starts tflaunch may ignore or block signals, leave files open, have a strange umask or no current directory.

The same holds for what starts its agents.
"""

import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from support.launch import PATIENCE, Launch, read_until, wait_for_end
from support.waiting import wait_gone, wait_until
from tflaunch.errors import EXIT_INTERNAL, EXIT_PREFLIGHT, TflaunchError
from tflaunch.runtime import daemon
from tflaunch_worker import signals

ODD = """
import fcntl, os, resource, signal, sys, tempfile
ignored = [signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGALRM, signal.SIGUSR1, signal.SIGPIPE]
for number in ignored:
    signal.signal(number, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, [*ignored, signal.SIGHUP, signal.SIGUSR2])
lock = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
for number in (3, 9, 40):
    os.dup2(lock, number)
fcntl.flock(lock, fcntl.LOCK_SH)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
if sys.argv[3] == "gone":
    gone = tempfile.mkdtemp()
    os.chdir(gone)
    os.rmdir(gone)
os.umask(int(sys.argv[2], 8))
os.execvp(sys.argv[4], sys.argv[4:])
"""
ALLOWED = (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGPIPE, signal.SIGXFSZ)
"""What our processes may ignore: Python, daemons and a background job do."""
TASK = (
    "umask; ulimit -Sn; grep -E '^Sig(Blk|Ign):' /proc/self/status;  echo up; "
    "until test -e go; do sleep 0.05; done; exit 7"
)
STANDARD = (1 << 31) - 1
"""The signals 1 to 31; the next two are the C library's own, and nobody else can change them."""
AWAITED = sum(1 << number - 1 for number in {*signals.ENDING, signal.SIGCHLD})
"""A guard takes these signals by waiting for them, and blocks them in between."""
TOLD = "0077\n64\nSigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\nup\n"
KINDS = {"bin/tflaunch", "tflaunch-agent:", "tflaunch-forkserver:", "tflaunch-warm:"}
CANNOT_EXECUTE = 126
"""The exit code of a task that could not be forked."""
DOCKER = '#!/bin/sh\nshift 3  # exec --interactive NAME\nexec {parent} "$@"\n'
"""Lets `docker exec` be a command on this machine, with this parent."""
PROGRAM = """
import signal, sys, tflaunch

def state():
    return signal.getsignal(signal.SIGCHLD), signal.pthread_sigmask(signal.SIG_BLOCK, [])

before = state()
print(tflaunch.run(sys.argv[1]).exit_code, before == state())
"""


UMASK = "777"
"""Tasks get 077 of it: nothing works where the owner may not read what he has written."""


@pytest.fixture
def oddly(launch: Launch) -> Iterator[None]:
    """Start all commands without a current directory, and without root's right to read all files."""
    launch.prefix = odd_parent(launch, UMASK)
    yield
    (launch.directory / "go").touch()
    launch.run("warm", "--stop")
    for process in launch.survivors():
        wait_gone(process.pid)


def odd_parent(launch: Launch, umask: str, directory: str = "gone") -> list[str]:
    """Return a command that executes its arguments with everything set oddly."""
    ordinary = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
    return [*ordinary, sys.executable, "-c", ODD, str(launch.directory / "lock"), umask, directory]


def signals_in(process: psutil.Process, field: str) -> int:
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(status.partition(f"{field}:\t")[2].split()[0], 16)


def check_processes(launch: Launch, holder: int = 0) -> set[str]:
    """Check what all processes have inherited; only ``holder`` may have the lock. Return what they are."""
    lock = str(launch.directory / "lock")
    kinds = set()
    for process in launch.survivors():
        with suppress(psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):  # a `sleep` of the task
            command = " ".join(process.cmdline())
            files = {file.path for file in process.open_files()}
            ignored = signals_in(process, "SigIgn")
            if not command.startswith(("sh ", "sleep ")):  # tasks tell it themselves
                is_guard = any(child.cmdline() == process.cmdline() for child in process.children())
                may_block = AWAITED if is_guard else 0
                # A process that forks blocks all signals for a moment.
                wait_until(lambda: not signals_in(process, "SigBlk") & STANDARD & ~may_block, otherwise=command)  # noqa: B023
                assert not {n for n in signal.valid_signals() if ignored >> (n - 1) & 1} - {*ALLOWED}, command
            assert process.pid == holder or lock not in files, command
            kinds |= {kind for kind in KINDS if kind in command}
    return kinds


def standard(told: str) -> str:
    """Return what a task has told, without the signals of the C library."""
    return re.sub(r"(?<=:\t)\w+", lambda mask: f"{int(mask[0], 16) & STANDARD:016x}", told)


def finish(launch: Launch, process: subprocess.Popen[str]) -> None:
    """Let the task end, whose exit code becomes the command's."""
    (launch.directory / "go").touch()
    _, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, "exited with code 7" in err) == (7, True), err


def spec_of(launch: Launch, **fields: Any) -> Path:
    """Write the spec of one task, which tells what it has inherited."""
    return launch.shell(TASK, workers=1, **{"strategy": "none", "restart": {"max": 0}, **fields})


@pytest.mark.usefixtures("oddly")
def test_a_run_in_the_foreground(launch: Launch) -> None:
    """Its task begins with default signals and without the caller's files, and the exit code is the task's."""
    process = launch.start("up", spec_of(launch))
    out = read_until(process, "| up").replace("worker:0 | ", "")
    assert standard(out) == TOLD
    assert check_processes(launch, process.pid) == {"tflaunch-agent:", "bin/tflaunch"}
    finish(launch, process)


@pytest.mark.usefixtures("oddly")
@pytest.mark.parametrize("options", [["-d"], pytest.param(["-d", "--queue"], marks=pytest.mark.thorough)])
def test_a_run_in_the_background(launch: Launch, options: list[str]) -> None:
    """It keeps no file of its caller open; neither does one that waits in the queue."""
    launch.prefix = odd_parent(launch, UMASK, "here")
    launch.succeed("up", *options, spec_of(launch))
    follower = launch.start("attach")
    out = read_until(follower, "| up").replace("worker:0 | ", "")
    follower.kill()
    follower.communicate()
    assert standard(out) == TOLD
    with open(launch.directory / "lock", "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert check_processes(launch) == {"tflaunch-agent:", "bin/tflaunch"}
    (launch.directory / "go").touch()
    assert launch.run("wait").returncode == 7


@pytest.mark.usefixtures("oddly")
def test_a_run_of_forked_tasks(launch: Launch) -> None:
    """With what has imported their modules, and outlives the run; a later run starts from it."""
    (launch.directory / "here.py").write_text(
        "import os, time\nprint('up')\nwhile not os.path.exists('go'):\n  time.sleep(0.05)\n"
    )
    fields = {"command": [sys.executable, "here.py"], "preload": ["json"], "warm": "1m"}
    launch.prefix = odd_parent(launch, UMASK, "here")
    for kind in ("tflaunch-forkserver:", "tflaunch-warm:"):
        process = launch.start("up", spec_of(launch, **fields), until="| up")
        assert {kind, "tflaunch-agent:"} < check_processes(launch, process.pid)
        (launch.directory / "go").touch()
        wait_for_end(process)
        (launch.directory / "go").unlink()
    assert check_processes(launch) == {"tflaunch-warm:"}


def test_a_program_that_ignores_the_end_of_its_children(launch: Launch) -> None:
    """`tflaunch.run` works in it, and changes nothing that is the program's own."""
    (launch.directory / "go").touch()
    spec = spec_of(launch)
    launch.prefix = [*odd_parent(launch, "000", "here"), sys.executable, "-c", PROGRAM, str(spec)]
    ended = launch.run()
    assert (ended.returncode, ended.stdout) == (0, "7 True\n"), ended.stderr


@pytest.mark.needs("root")
@pytest.mark.parametrize("is_elsewhere", [False, True])
def test_a_place_without_proc(launch: Launch, is_elsewhere: bool) -> None:
    """One sentence in a chroot, here and on a host that a command reaches."""
    (launch.directory / "go").touch()
    home = f"{tempfile.gettempdir()}/tfl-{os.getpid()}"  # short: through /proc, the path of a socket may be long
    launch.env["TFLAUNCH_HOME"] = home
    launch.install("docker", DOCKER.format(parent="env"))
    hosts = {"c1": {"docker": "c1", "env": {"TFLAUNCH_HOME": home}}} if is_elsewhere else {}
    spec = spec_of(launch, cluster={"worker": ["c1" if is_elsewhere else "localhost"]}, hosts=hosts)
    launch.prefix = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs none /proc && exec "$@"', "sh"]
    ended = launch.run("up", spec)
    shutil.rmtree(home)
    assert ended.returncode == 3, ended.stderr
    assert ended.stderr.endswith(
        "/proc is not mounted there, and without it no process can be watched; run: mount -t proc proc /proc\n"
    )
    assert "Traceback" not in ended.stderr


def test_why_a_supervisor_did_not_begin(tmp_path: Path) -> None:
    """Its exit code is known where the kernel has forgotten it."""
    reader, writer = os.pipe()
    os.write(writer, b"3")
    (tmp_path / "supervisor.log").write_text("no agent could be started\n")
    with pytest.raises(TflaunchError, match="no agent could be started") as failure:
        daemon.await_beginning(reader, lambda: 0, tmp_path)
    assert failure.value.exit_code == 3


def test_a_current_directory_that_is_gone(launch: Launch) -> None:
    """Where it is needed, it is named; nothing is left."""
    launch.prefix = odd_parent(launch, "022")
    ended = launch.run("run", "--", "true")
    told = "tflaunch: the current directory does not exist any more; change to another one"
    assert (ended.returncode, ended.stderr.splitlines()) == (125, [told])
    assert not list(launch.home.glob("runs/*"))


@pytest.mark.needs("root")
@pytest.mark.parametrize(("processes", "detach"), [(1, ("-d",)), (2, ())], ids=["detached", ""])
def test_no_room_for_threads_is_one_sentence(launch: Launch, processes: int, detach: tuple[str, ...]) -> None:
    """With limit and remedy; what has begun ends, is recorded, and is not listed as lost."""
    user = 54321
    launch.home.mkdir()
    os.chown(launch.home, user, user)
    launch.env["HOME"] = str(launch.home)
    reads_all = ["--inh-caps=+dac_override", "--ambient-caps=+dac_override"]  # also where Python is private to root
    launch.prefix = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", *reads_all]
    launch.prefix += ["prlimit", f"--nproc={processes}"]
    ended = launch.run("up", *detach, launch.shell("sleep 60", workers=1, strategy="none"))
    if "[Errno 11]" in ended.stderr:  # the guard was the one too many
        assert (ended.returncode, len(ended.stderr.splitlines())) == (EXIT_PREFLIGHT, 1), ended
        return
    assert ended.returncode in (EXIT_PREFLIGHT, EXIT_INTERNAL, CANNOT_EXECUTE), ended
    sentence = f"no room here for another thread or process, or for memory; raise `ulimit -u` ({processes})"
    assert sentence in ended.stderr
    assert "Traceback" not in ended.stderr
    launch.prefix = launch.prefix[:-2]
    listed = json.loads(launch.run("ls", "--json").stdout)
    assert {(run["state"], run["exit_code"]) for run in listed} <= {("failed", ended.returncode)}
    if listed:
        assert "raise `ulimit -u`" in launch.run("explain").stdout  # of the supervisor, or of a task before it
    assert not launch.survivors()


@pytest.mark.thorough
def test_no_memory_is_one_sentence(launch: Launch) -> None:
    """However little there is, once the command line is read; but where none is left for an error, Python aborts."""
    spec = launch.shell("true", workers=1, strategy="none")
    codes = set()
    for megabytes in range(24, 32, 2):
        launch.prefix = ["prlimit", f"--as={megabytes * 1_000_000}"]
        ended = launch.run("check", spec)
        codes.add(ended.returncode)
        if ended.returncode == -signal.SIGABRT:
            assert "Fatal Python error" in ended.stderr
        else:
            assert (ended.returncode, len(ended.stderr.splitlines())) == (EXIT_INTERNAL, 1), ended
            assert f"`ulimit -v` ({megabytes}000000 bytes)" in ended.stderr
    assert EXIT_INTERNAL in codes


EXEC = """env -i HOME={home} PATH={path} LD_LIBRARY_PATH=/own/lib TFLAUNCH_HOME={home}/own TFLAUNCH_SET=OTHER"""


def test_a_task_inherits_what_docker_exec_gives(launch: Launch) -> None:
    """Its PATH and tflaunch's directory are the container's; nothing is the launcher's."""
    home = launch.directory / "in the container"
    home.mkdir()
    path = f"/own/bin:{Path(sys.executable).parent}:/usr/bin:/bin"
    launch.install("docker", DOCKER.format(parent=EXEC.format(home=f"'{home}'", path=path)))
    launch.env["OF_THE_LAUNCHER"] = "yes"
    script = 'echo "$PATH $LD_LIBRARY_PATH ${OF_THE_LAUNCHER-none} ${TFLAUNCH_SET-none} $TFLAUNCH_TASK_DIR"'
    hosts = {"c1": {"docker": "c1", "workdir": "/"}}
    ended = launch.succeed("up", launch.shell(script, cluster={"worker": ["c1"]}, hosts=hosts, strategy="none"))
    assert f"{path} /own/lib none " in ended.stdout
    assert f" {home}/own/runs/" in ended.stdout
    assert "OTHER" not in ended.stdout
