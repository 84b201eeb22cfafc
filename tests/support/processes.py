"""The processes of a bed's hosts: this machine's /proc lists them all."""

import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import psutil
from typing_extensions import Self

from support.needs import lack
from support.waiting import wait_until

_PERIOD = 0.1  # seconds between samples
_LOOKS = 20  # at a process that has no command line at the moment
_PAUSE = 0.001  # seconds between them
# Fields of /proc/PID/stat, counted after the name in parentheses: the start time, and the addresses of arguments
# and variables, which an exec changes.
_STATE, _STARTED, _IMAGE = 0, 19, slice(45, 49)


@dataclass(frozen=True)
class Process:
    pid: int
    """The pid on this machine."""
    host: int
    cmdline: tuple[str, ...]
    environ: dict[str, str] = field(repr=False)

    @property
    def is_sshd(self) -> bool:
        """Return whether it belongs to the host itself: the listener or the server of a connection."""
        # "/usr/sbin/sshd", "sshd: ann [priv]", "sshd-session: ann@notty"
        return bool(self.cmdline) and Path(self.cmdline[0].split(":")[0]).name.startswith("sshd")


class Table:
    """Reads the processes of hosts; what it has read of one is cached until the process changes."""

    def __init__(self, host_of: Callable[[str], int | None]) -> None:
        """Read the processes with a PID namespace, such as "pid:[4026531836]", for which `host_of` knows the host."""
        self._host_of = host_of
        self._known: dict[tuple[str, ...], Process | None] = {}

    def read(self) -> list[Process]:
        """Return all processes of the hosts, without zombies."""
        known = {}
        for pid in map(int, filter(str.isdecimal, os.listdir("/proc"))):
            # An exec between two reads leaves behind an identity that never recurs.
            if identity := _identity(pid):
                known[identity] = self._known[identity] if identity in self._known else self._read(pid)
        self._known = known
        return [process for process in known.values() if process]

    def still(self, processes: Iterable[Process]) -> Iterator[Process]:
        """Yield those of the last read that are still alive."""
        identities = {process.pid: identity for identity, process in self._known.items() if process}
        return (process for process in processes if _identity(process.pid) == identities.get(process.pid))

    def _read(self, pid: int) -> Process | None:
        proc = Path(f"/proc/{pid}")
        try:
            host = self._host_of(os.readlink(proc / "ns" / "pid"))
            if host is None:
                return None
            for _ in range(_LOOKS):
                cmdline, environ = (_strings(proc / name) for name in ("cmdline", "environ"))
                if cmdline and environ:
                    break
                if not _identity(pid):
                    return None
                time.sleep(_PAUSE)  # clock: it executes another program, or exits, and has neither for a moment
        except OSError:
            return None
        return Process(pid, host, tuple(cmdline), {key: value for key, _, value in (e.partition("=") for e in environ)})


def _identity(pid: int) -> tuple[str, ...]:
    """Return a value that is unique to this process and changes with an exec; empty for a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return ()
    fields = stat.rpartition(b")")[2].decode().split()
    return () if fields[_STATE] in "ZX" else (str(pid), fields[_STARTED], *fields[_IMAGE])


def _strings(path: Path) -> list[str]:
    return path.read_bytes().decode(errors="replace").split("\0")[:-1]


def all_processes() -> Iterator[psutil.Process]:
    """Yield a new object for every process of this machine.

    Those of `psutil.process_iter` are kept between calls. One whose pid has been reused by another process, which takes
    minutes where many tests run, can be neither signalled nor waited for.
    """
    for pid in psutil.pids():
        with suppress(psutil.NoSuchProcess):
            yield psutil.Process(pid)


def processes_with(variable: str, value: str) -> Iterator[psutil.Process]:
    """Yield a new object for every process that was started with a variable of this value, zombies excepted.

    Tests ask this thousands of times: psutil would read three files of every process of this machine, and parse them.
    """
    wanted = f"{variable}={value}".encode()
    for pid in psutil.pids():
        with suppress(OSError, psutil.Error):  # it has exited, or belongs to another user
            if wanted in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                process = psutil.Process(pid)
                if process.status() != psutil.STATUS_ZOMBIE:
                    yield process


def command_of(process: psutil.Process) -> list[str]:
    """Return the command line of a process; empty if it has exited."""
    try:
        return process.cmdline()
    except (psutil.Error, OSError):
        return []


def environment_of(process: psutil.Process) -> dict[str, str]:
    """Return the environment of a process; empty if it has exited, or belongs to another user."""
    try:
        return process.environ()
    except (psutil.Error, OSError):
        return {}


def without_forks(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Return those whose parent is not among them: until it executes its program, a fork has its parent's title."""
    known = {process.pid: process for process in processes}
    return [process for process in known.values() if parent_of(process) not in (None, *known)]


def parent_of(process: psutil.Process) -> int | None:
    try:
        return process.ppid()
    except (psutil.Error, OSError):
        return None


def is_agent(process: psutil.Process) -> bool:
    """Whether a process is a guard or an agent by its title."""
    return any(word.startswith("tflaunch-agent:") for word in command_of(process)[-1:])


class Living(NamedTuple):
    """An attempt of a task that has at least one process on a host."""

    task: str
    attempt: int
    host: int


class Sample(NamedTuple):
    """What was alive at one time, by `time.monotonic`."""

    when: float
    living: frozenset[Living]


class ProcessWatch:
    """Samples which attempts are alive on which hosts, for the duration of the `with`."""

    def __init__(self, host_of: Callable[[str], int | None], run: str | None = None) -> None:
        """Watch the tasks of one run, or of all runs; `host_of` as for `Table`."""
        self.samples: list[Sample] = []
        self._table = Table(host_of)
        self._run = run
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="process watch", daemon=True)
        self._failure: BaseException | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, _: object, error: BaseException | None, trace: object) -> None:
        self._stop.set()
        self._thread.join()
        if self._failure and error is None:
            raise self._failure

    def clashes(self) -> list[tuple[float, list[Living]]]:
        """Return when a task had more than one attempt, or an attempt more than one host, at the same instant."""
        return [(when, clash) for when, living in self.samples if (clash := _clash(living))]

    def _watch(self) -> None:
        try:
            while True:
                last = self._stop.is_set()
                self.samples.append(self._sample())
                if last:
                    return
                self._stop.wait(_PERIOD)
        except BaseException as error:  # noqa: BLE001 - the waiting test must see it
            self._failure = error

    def _sample(self) -> Sample:
        when = time.monotonic()  # clock: of each sample, to be compared with those of other records
        processes = self._table.read()
        living = self._attempts(processes)
        if _clash(living):
            # Reading the table takes a moment, in which one may have died and the other started. What is still
            # alive after the complete read was alive at the same time.
            living = self._attempts(self._table.still(processes))
        return Sample(when, living)

    def _attempts(self, processes: Iterable[Process]) -> frozenset[Living]:
        return frozenset(
            Living(process.environ["TFLAUNCH_TASK"], int(process.environ["TFLAUNCH_ATTEMPT"]), process.host)
            for process in processes
            if {"TFLAUNCH_TASK", "TFLAUNCH_ATTEMPT"} <= process.environ.keys()
            and self._run in (None, process.environ.get("TFLAUNCH_RUN"))
        )


def _clash(living: frozenset[Living]) -> list[Living]:
    by_task = defaultdict(list)
    for one in living:
        by_task[one.task].append(one)
    return sorted(one for ones in by_task.values() if len(ones) > 1 for one in ones)


def wait_until_waiting(pid: int, wchan: str = "hrtimer_nanosleep", state: str = "S") -> None:
    """Return once a process is in a state, at a kernel function whose name contains ``wchan``; by default it sleeps.

    A program can only print before it does what a test is about, and may stand still in between.
    """
    status, at = (Path(f"/proc/{pid}/{name}") for name in ("status", "wchan"))
    wait_until(
        lambda: f"State:\t{state}" in status.read_text() and wchan in at.read_text(),
        otherwise=f"process {pid} does not come to {wchan}",
    )


def memory_has(pid: int, text: str) -> bool:
    """Return whether the memory of a process has a text, in use or not; skip the test where it cannot be read."""
    regions = [line.split() for line in Path(f"/proc/{pid}/maps").read_text().splitlines()]
    try:
        with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
            for span, rights, *rest in regions:
                if not rights.startswith("rw") or rest[-1] in ("[vvar]", "[vsyscall]"):
                    continue
                start, end = (int(part, 16) for part in span.split("-"))
                memory.seek(start)
                if text.encode() in memory.read(end - start):
                    return True
    except PermissionError:
        lack("memory")
    return False
