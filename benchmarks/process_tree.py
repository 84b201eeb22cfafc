"""Start the measured processes, inspect them in /proc, and make sure that they end.

Standard library only, Linux only (/proc, pidfd, prctl).
"""

import contextlib
import ctypes
import multiprocessing
import os
import resource
import select
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple, TypeVar

SETTLE = 1.0  # seconds that a launcher's last processes have to disappear after it returned

_PR_SET_CHILD_SUBREAPER = 36
_T = TypeVar("_T")


class StuckError(Exception):
    """What was waited for did not happen."""


class Run(NamedTuple):
    """One whole command, from start to return; `exit_code` is None if it hung."""

    seconds: float
    exit_code: int | None
    left_running: int


class ProcessTree:
    """Every process that descends from this one, orphans included, and no other."""

    def __init__(self) -> None:
        """Adopt orphans from now on; children that existed before are left alone."""
        # A launcher's child that has its own session and lost its parent is beyond the reach of any process
        # group, so this process takes the place of init for its descendants.
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")
        self._strangers = set(_descendants(os.getpid()))

    def start(self, argv: list[str], directory: Path, output: Path | None, errors: Path | None = None) -> "Started":
        """Start a command in its directory, with output to a file; None means a pipe, with errors discarded."""
        with contextlib.ExitStack() as files:
            sink = files.enter_context(output.open("wb")) if output else subprocess.PIPE
            other = errors or output
            errors_sink = files.enter_context(other.open("ab")) if other else subprocess.DEVNULL
            begun = time.monotonic()
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=errors_sink,
                cwd=directory,
                env=_environment(directory),
                start_new_session=True,
            )
        return Started(process, begun)

    def run(self, argv: list[str], directory: Path, output: Path, limit: float) -> Run:
        """Run a command to its end, or to the time limit."""
        return self.finish(self.start(argv, directory, output), limit)

    def finish(self, started: "Started", limit: float) -> Run:
        """Wait for a started command until its end or the time limit, then kill whatever is left."""
        ended = started.wait(limit)
        seconds = time.monotonic() - started.begun
        left = self.left_running() if ended else 0
        self.end()
        return Run(seconds, started.process.returncode if ended else None, left)

    def living(self) -> list[int]:
        """Return the PIDs of all living processes."""
        return [pid for pid in _descendants(os.getpid()) if pid not in self._strangers]

    def left_running(self) -> int:
        """Count the processes that outlive the settling time."""
        deadline = time.monotonic() + SETTLE
        while (living := len(self.living())) and time.monotonic() < deadline:
            time.sleep(0.01)
        return living

    def end(self) -> None:
        """Kill all processes, including those that they start in the meantime."""
        while living := self.living():
            for pid in living:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


class Started(NamedTuple):
    """A running command, and its start time on the monotonic clock."""

    process: subprocess.Popen[bytes]
    begun: float

    def wait(self, limit: float) -> bool:
        """Wait for the command's end; return whether it came within ``limit`` seconds of its start."""
        if self.process.poll() is None:
            # Popen.wait(timeout) polls at intervals of up to 50 ms; a pidfd wakes on the exit itself.
            if not all_ended([self.process.pid], self.begun + limit):
                return False
            self.process.wait()
        return True


@contextlib.contextmanager
def workshop(name: str) -> Iterator[tuple[ProcessTree, Path]]:
    """Yield a process tree and a temporary directory; kill and remove both on exit."""
    tree = ProcessTree()
    with tempfile.TemporaryDirectory(prefix=f"{name}-", ignore_cleanup_errors=True) as scratch:
        try:
            yield tree, Path(scratch)
        finally:
            tree.end()


def forked(work: Callable[[], _T]) -> _T:
    """Run a function in a separate process, so that its descendants are its own, and return its result."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=lambda: sender.send(work()))
    process.start()
    sender.close()
    try:
        result: _T = receiver.recv()
        return result
    except EOFError:
        raise SystemExit("it broke off") from None
    finally:
        process.terminate()
        process.join()


def all_ended(pids: Iterable[int], deadline: float) -> bool:
    """Wait until all of the processes have ended, or until a time on the monotonic clock."""
    for pid in pids:
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            if not select.select([pidfd], [], [], max(0.0, deadline - time.monotonic()))[0]:
                return False
        finally:
            os.close(pidfd)
    return True


def wait_for(look: Callable[[], _T], limit: float, *, pause: float = 0.01) -> _T:
    """Poll until ``look`` returns something truthy, and return that."""
    end = time.monotonic() + limit
    while not (seen := look()):
        if time.monotonic() > end:
            raise StuckError(f"nothing came within {limit:g} s")
        time.sleep(pause)
    return seen


def cpu_seconds(pids: Iterable[int], *, with_ended_children: bool = False) -> float:
    """Return the CPU seconds that some processes have used, in ticks of 10 ms."""
    last = 15 if with_ended_children else 13
    ticks = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            ticks += sum(map(int, _stat(pid)[11:last]))
    return ticks / os.sysconf("SC_CLK_TCK")


def memory(pids: Iterable[int]) -> float:
    """Return the memory of some processes together, in MB; what they share counts once (PSS)."""
    kilobytes = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
            kilobytes += next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))
    return kilobytes / 1000


def cpu_of_children() -> float:
    """Return the CPU seconds of all descendants that have ended and were waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def command_of(pid: int) -> tuple[str, ...]:
    """Return the command line of a process, empty if it is gone."""
    try:
        return tuple(Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")[:-1])
    except OSError:
        return ()


def parent_of(pid: int) -> int:
    """Return the parent of a living process."""
    return int(_stat(pid)[1])


def status_of(pid: int, task: int | None = None) -> dict[str, str]:
    """Return the status fields of a process, or of one of its threads; empty if it is gone."""
    where = Path(f"/proc/{pid}/task/{task}/status" if task else f"/proc/{pid}/status")
    try:
        return dict(line.split(":", 1) for line in where.read_text().splitlines())
    except OSError:
        return {}


def _stat(pid: int) -> list[str]:
    # The command's name is in parentheses and may itself contain some.
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _environment(directory: Path) -> dict[str, str]:
    environment = {
        **os.environ,
        "NO_COLOR": "1",
        "OMP_NUM_THREADS": "1",  # otherwise torchrun warns about it
        # Otherwise GNU parallel uses its parent shell; bash is replaced by the task, dash stays as its parent.
        "PARALLEL_SHELL": shutil.which("bash") or "/bin/sh",
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "TFLAUNCH_HOME": str(directory / "home"),
        "TMPDIR": str(directory),  # torchrun and mpirun leave directories behind
    }
    # Either would slow down every Python launcher in a way that users do not see.
    for name in ("PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED"):
        environment.pop(name, None)
    return environment


def _descendants(ancestor: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                state, parent = _stat(int(entry.name))[:2]
                if state != "Z":
                    children.setdefault(int(parent), []).append(int(entry.name))
    found: list[int] = []
    frontier = [ancestor]
    while frontier:
        offspring = children.get(frontier.pop(), [])
        found += offspring
        frontier += offspring
    return found
