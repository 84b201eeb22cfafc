"""The launchers that are compared: where each is found, and how each runs N tasks.

Standard library only, Linux only (/proc, pidfd, prctl).
"""

import contextlib
import ctypes
import http.client
import json
import os
import select
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
import xmlrpc.client
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

PYPI_PEERS = ("honcho==2.0.0", "supervisor==4.3.0")
PYPI_TORCH = "torch==2.13.0"
BASE = "bare Popen + wait"

LIMIT = 15.0  # seconds until a run counts as hung; a torchrun from a cold disk took 3
SETTLE = 1.0  # seconds that a launcher's last processes have to vanish after it returned

_PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True)
class Job:
    """What a launcher is asked to do: run `command` `tasks` times, its files in `directory`."""

    tasks: int
    command: tuple[str, ...]
    directory: Path


@dataclass(frozen=True)
class Launcher:
    """One row of the table; `program` is empty where it is not installed."""

    name: str
    program: str
    remedy: str
    argv: Callable[[str, Job], list[str]]
    runs_tasks: bool = True
    finish: Callable[[subprocess.Popen[bytes], Job, float], None] | None = None


@dataclass(frozen=True)
class Run:
    """One whole command, start to return; `exit_code` is None where it hung."""

    seconds: float
    exit_code: int | None
    left_running: int


def launchers(venv: Path | None) -> list[Launcher]:
    """Return every row of the table, the base first."""
    peers = venv / "bin" if venv else None
    python = sys.executable
    honcho, supervisor = (f"pip install {package}" for package in PYPI_PEERS)
    # The tflaunch beside this interpreter is the one under development; PATH may hold an older one.
    tflaunch = _find("tflaunch", Path(python).parent)
    here = "pip install ."
    return [
        Launcher(BASE, python, "", _popen),
        Launcher("tflaunch up", tflaunch, here, _tflaunch_up),
        Launcher("supervisord", _find("supervisord", peers), supervisor, _supervisord, finish=_shut_down_when_done),
        Launcher("honcho", _find("honcho", peers), honcho, _honcho),
        Launcher("mpirun", _find("mpirun", None), "apt-get install --no-install-recommends openmpi-bin", _mpirun),
        Launcher("torchrun", _find("torchrun", peers), f"pip install {PYPI_TORCH}", _torchrun),
        Launcher("tflaunch --version", tflaunch, here, lambda program, _: [program, "--version"], runs_tasks=False),
        Launcher("python -c pass", python, "", lambda program, _: [program, "-c", "pass"], runs_tasks=False),
    ]


def install(venv: Path, *, with_torch: bool) -> None:
    """Make the peers' own virtual environment, so that they never meet tflaunch's dependencies."""
    subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    packages = [*PYPI_PEERS, PYPI_TORCH] if with_torch else [*PYPI_PEERS]
    # stdout belongs to the table.
    subprocess.run([venv / "bin" / "pip", "install", "--quiet", *packages], check=True, stdout=sys.stderr)


def _find(program: str, first: Path | None) -> str:
    found = (first and shutil.which(program, path=str(first))) or shutil.which(program)
    # Absolute, as it runs in another directory.
    return str(Path(found).absolute()) if found else ""


# How each launcher is told what to run. Files are written before the clock starts.


def _popen(program: str, job: Job) -> list[str]:
    code = (
        "import subprocess\n"
        f"tasks = [subprocess.Popen({job.command!r}) for _ in range({job.tasks})]\n"
        "for task in tasks: task.wait()"
    )
    return [program, "-c", code]


def _tflaunch_up(program: str, job: Job) -> list[str]:
    spec = job.directory / "startup.json"
    spec.write_text(json.dumps({"cluster": {"worker": job.tasks}, "command": job.command}))
    return [program, "up", str(spec)]


def _honcho(program: str, job: Job) -> list[str]:
    procfile = job.directory / "Procfile"
    procfile.write_text("".join(f"task{i}: {shlex.join(job.command)}\n" for i in range(job.tasks)))
    return [program, "--no-colour", "-f", str(procfile), "-e", os.devnull, "start"]


def _mpirun(program: str, job: Job) -> list[str]:
    return [program, "--allow-run-as-root", "--oversubscribe", "-np", str(job.tasks), *job.command]


def _torchrun(program: str, job: Job) -> list[str]:
    # The static rendezvous is torchrun's fastest: --standalone takes 0.2 s longer.
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    where = ["--master-addr", "127.0.0.1", "--master-port", str(port)]
    return [program, "--no-python", *where, "--nproc-per-node", str(job.tasks), *job.command]


_SUPERVISORD = """\
[unix_http_server]
file={directory}/s.sock
[supervisord]
nodaemon=true
logfile={directory}/supervisord.log
pidfile={directory}/supervisord.pid
minfds=200
[rpcinterface:supervisor]
supervisor.rpcinterface_factory=supervisor.rpcinterface:make_main_rpcinterface
"""
_SUPERVISED = """\
[program:task{index}]
command={command}
autorestart=false
startsecs=0
stdout_logfile=NONE
stderr_logfile=NONE
"""


def _supervisord(program: str, job: Job) -> list[str]:
    conf = job.directory / "supervisord.conf"
    command = shlex.join(job.command)
    tasks = (_SUPERVISED.format(index=i, command=command) for i in range(job.tasks))
    conf.write_text(_SUPERVISORD.format(directory=job.directory) + "".join(tasks))
    return [program, "-c", str(conf)]


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost")
        self.path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(LIMIT)
        self.sock.connect(str(self.path))


class _UnixTransport(xmlrpc.client.Transport):
    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path

    def make_connection(self, host: object) -> http.client.HTTPConnection:
        return _UnixConnection(self.path)


def _shut_down_when_done(process: subprocess.Popen[bytes], job: Job, deadline: float) -> None:
    # supervisord never ends by itself. Asking from here rather than through supervisorctl spares it
    # the start of a second interpreter, so its figure is the best that it can do.
    transport = _UnixTransport(job.directory / "s.sock")
    with xmlrpc.client.ServerProxy("http://localhost", transport=transport) as server:
        while process.poll() is None and time.perf_counter() < deadline:
            # Not listening yet, or about to go: both are met again at the next turn.
            with contextlib.suppress(OSError, http.client.HTTPException, xmlrpc.client.Fault):
                if _all_exited(server.supervisor.getAllProcessInfo()):
                    server.supervisor.shutdown()
                    return
            time.sleep(0.005)


def _all_exited(answer: object) -> bool:
    return isinstance(answer, list) and all(task["statename"] in ("EXITED", "FATAL") for task in answer)


# Running one, and being sure of what it leaves behind.


class Brood:
    """Every process that descends from this one, orphans included, and no other."""

    def __init__(self) -> None:
        """Adopt orphans from now on; children that were here before are not ours to end."""
        # A launcher's child that made itself a session and lost its parent would be out of reach
        # of any process group, so this process takes the place of init for its descendants.
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")
        self._strangers = set(_descendants(os.getpid()))

    def run(self, launcher: Launcher, argv: list[str], job: Job, output: Path) -> Run:
        """Run a launcher to its end, or to the limit."""
        environment = _environment(job.directory)
        with output.open("wb") as sink:
            start = time.perf_counter()
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                cwd=job.directory,
                env=environment,
                start_new_session=True,
            )
            if launcher.finish:
                launcher.finish(process, job, start + LIMIT)
            ended = _wait(process, start + LIMIT)
            seconds = time.perf_counter() - start
        left = self.left_running() if ended else 0
        self.end()
        exit_code = process.wait()
        _reap_orphans()
        return Run(seconds, exit_code if ended else None, left)

    def left_running(self) -> int:
        """Count the descendants that outlive the time to settle."""
        deadline = time.monotonic() + SETTLE
        while (living := len(self._living())) and time.monotonic() < deadline:
            time.sleep(0.01)
        return living

    def end(self) -> None:
        """Kill all descendants, those included that they start meanwhile."""
        while living := self._living():
            for pid in living:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)

    def _living(self) -> list[int]:
        return [pid for pid in _descendants(os.getpid()) if pid not in self._strangers]


def _reap_orphans() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _wait(process: subprocess.Popen[bytes], deadline: float) -> bool:
    if process.poll() is not None:
        return True
    # Popen.wait(timeout) sleeps up to 50 ms between looks; a pidfd wakes at the exit itself.
    pidfd = os.pidfd_open(process.pid)
    try:
        ready, _, _ = select.select([pidfd], [], [], max(0.0, deadline - time.perf_counter()))
    finally:
        os.close(pidfd)
    if ready:
        process.wait()
    return bool(ready)


def _environment(directory: Path) -> dict[str, str]:
    environment = {
        **os.environ,
        "NO_COLOR": "1",
        "OMP_NUM_THREADS": "1",  # else torchrun warns about it
        "TFLAUNCH_HOME": str(directory / "home"),
        "TMPDIR": str(directory),  # torchrun and mpirun leave directories behind
    }
    # Either would make every Python launcher pay for what a user's does not.
    for name in ("PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED"):
        environment.pop(name, None)
    return environment


def _descendants(ancestor: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for pid, parent in _processes():
        children.setdefault(parent, []).append(pid)
    found: list[int] = []
    frontier = [ancestor]
    while frontier:
        offspring = children.get(frontier.pop(), [])
        found += offspring
        frontier += offspring
    return found


def _processes() -> Iterator[tuple[int, int]]:
    """Yield the pid and the parent of every process that is no zombie."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                # The command's name stands in parentheses and may itself hold some.
                state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
                if state != "Z":
                    yield int(entry.name), int(parent)
