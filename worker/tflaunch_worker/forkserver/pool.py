"""Keep this host's zygotes, one per environment, and fork tasks from them.

A zygote (`server`) is started for the first task that needs it, stays for later attempts, and ends with the agent. A
task is forked in three steps, so that no program runs without the agent's knowledge, even if a process dies or is slow:
the zygote gets the request with the ends of two connections; the fork sends its pid over one of them; it continues only
after the agent's answer, which has the task's secrets. If the connection ends without a pid, the task is started as
usual.

Standard library only, Python >= 3.8: this module runs on hosts.
"""

from __future__ import annotations

import array
import hashlib
import json
import os
import signal
import socket
from collections import deque

from tflaunch_worker import linux, program_source, spawn
from tflaunch_worker.forkserver import warm_client
from tflaunch_worker.socket_messages import encode_message, receive_message, send_message

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable

    from tflaunch_worker.event_loop import Loop
    from tflaunch_worker.process_state import TaskSettings

PRELOAD = "TFLAUNCH_PRELOAD"
"""Variable that lists the modules imported for a task, or holds "no: " and the reason."""

_TASK_VARIABLES = ("TF_CONFIG", "TFLAUNCH_TASK", "TFLAUNCH_ATTEMPT", "TFLAUNCH_TASK_DIR", "TFLAUNCH_PROGRESS", PRELOAD)
_FEWER_THREADS = {"OPENBLAS_NUM_THREADS": "1"}  # OpenBLAS would start its threads during its import
_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# "", the working directory, is replaced because it may contain a module of any name.
_CODE = (
    f"import sys; sys.path[: sys.path[:1] == ['']] = [{_ROOT!r}]; "
    "from tflaunch_worker.forkserver import server; server.main()"
)
_IMPORT_TIMEOUT = 120.0  # seconds
_STAY_PATIENCE = 3.0  # seconds for a zygote to look at all files that it has imported
_GO_PATIENCE = 2.0  # seconds for a fork to read what it is waiting for
_REAP_INTERVAL = 0.05  # seconds
_READ = 64 * 1024


class WarmZygote:
    """A child of the agent that a warm server has forked: its pid, the connection to it, and the key of its tasks."""

    def __init__(self, pid: int, link: int, key: str) -> None:
        self.pid = pid
        self.link = link
        self.key = key


class ZygotePool:
    """The zygotes of this host."""

    def __init__(self, loop: Loop, forks: set[int], warm: WarmZygote | None = None) -> None:
        """Create the pool.

        Args:
            loop: the agent's.
            forks: gets the pids of forked tasks.
            warm: a zygote that exists already.
        """
        self._loop = loop
        self._forks = forks
        self._warm = warm
        self._zygotes: dict[tuple[object, ...], Zygote] = {}
        self._unusable: dict[tuple[object, ...], str] = {}

    def fork_task(
        self,
        command: spawn.Command,
        settings: TaskSettings,
        on_started: Callable[[spawn.Child], None],
        on_refused: Callable[[], None],
    ) -> PendingFork | None:
        """Fork a task from a zygote; calls ``on_started``, or ``on_refused`` to fall back to exec.

        Before that, sets ``command.preload`` to the modules or the reason. Returns None if ``on_refused`` was called
        immediately.
        """

        def started(child: spawn.Child) -> None:
            self._forks.add(child.pid)
            on_started(child)

        def refused(reason: str) -> None:
            _set_preload(command, f"no: {reason}")
            on_refused()

        path, reason = self._check(command)
        key = _zygote_key(command, path)
        if not reason:
            try:
                zygote = self._zygotes.get(key) or self._start_zygote(key, command, path, settings)
                return zygote.request_fork(command, started, refused)
            except OSError as error:
                reason = f"no process: {error.strerror}"
        refused(reason)
        return None

    def import_modules(self, command: spawn.Command, settings: TaskSettings) -> None:
        """Start the zygote for tasks with this command, if they can be forked, so that the first of them finds it."""
        path, reason = self._check(command)
        key = _zygote_key(command, path)
        if not reason and key not in self._zygotes:
            try:
                self._start_zygote(key, command, path, settings)
            except OSError:
                pass  # the first task tries again, and tells the reason

    def _check(self, command: spawn.Command) -> tuple[str, str]:
        """Return the path of a command's interpreter, and why it cannot be forked ("" if it can)."""
        reason = program_source.check_command(command.argv)
        path = "" if reason else spawn.find_executable(command)
        if not reason and not path:
            reason = f"{command.argv[0]} is not the interpreter itself"
        return path, reason or self._unusable.get(_zygote_key(command, path), "")

    def _start_zygote(
        self, key: tuple[object, ...], command: spawn.Command, path: str, settings: TaskSettings
    ) -> Zygote:
        def on_ended(has_answered: bool) -> None:
            del self._zygotes[key]
            if not has_answered:
                self._unusable[key] = "the process that imports for it has died of that"

        if self._warm is not None and self._warm.key == _warm_key(command, path):
            link, pid, self._warm = socket.socket(fileno=self._warm.link), self._warm.pid, None
        else:
            link, child = _start_import(command, path, settings)
            pid = child.pid
            _discard_output(self._loop, child)
        self._zygotes[key] = Zygote(self._loop, pid, link, on_ended)
        self._zygotes[key].warm_key = _warm_key(command, path) if command.warm is not None else ""
        self._zygotes[key].warm = command.warm
        return self._zygotes[key]

    def keep_warm(self) -> list[int]:
        """Let the zygotes that may outlive this agent do so, once the loop has ended; return their pids."""
        return [zygote.pid for zygote in self._zygotes.values() if zygote.keep_warm()]


class PendingFork:
    """A requested fork. Until it is started, no process runs any part of the task's program."""

    def __init__(
        self,
        loop: Loop,
        output: int,
        report: socket.socket,
        secrets: dict[str, str],
        on_started: Callable[[spawn.Child], None],
        on_refused: Callable[[str], None],
    ) -> None:
        self._loop = loop
        self._output = output
        self._report = report
        self._secrets = secrets
        self._on_started = on_started
        self._on_refused = on_refused
        self._received = b""
        self._is_cancelled = False
        self.on_answer: Callable[[bool], None] = lambda _: None
        """Called when the result is known, with whether the zygote has answered."""
        loop.watch(report.fileno(), self._read_report)

    def cancel(self) -> None:
        """Cancel the fork; a process already forked for it is killed before it runs anything."""
        self._is_cancelled = True

    def _read_report(self) -> None:
        try:
            data = self._report.recv(_READ)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self._received += data
        if data and b"\n" not in self._received:
            return
        self._loop.forget(self._report.fileno())
        kind, _, rest = self._received.decode("utf-8", "replace").partition("\n")[0].partition(" ")
        self.on_answer(bool(data))
        if kind == "pid" and rest.isdecimal() and linux.parent_of(int(rest)) == os.getpid():
            self._continue_fork(int(rest))
        else:
            self._close_fds()
            if not self._is_cancelled:
                self._on_refused(rest if kind == "no:" else "the process that imports for it has died")

    def _continue_fork(self, pid: int) -> None:
        if self._is_cancelled:
            self._close_fds()
            kill_and_reap(self._loop, pid)
            return
        self._report.settimeout(_GO_PATIENCE)
        try:  # secrets go past the zygote, which may outlive the run
            send_message(self._report, {"kind": "go", "secrets": self._secrets})
        except OSError:
            pass  # the fork has died, and so has the task
        self._report.setblocking(False)
        self._on_started(spawn.Child(pid, self._output, self._report.detach()))

    def _close_fds(self) -> None:
        self._report.close()
        os.close(self._output)


class Zygote:
    """A process that imports modules, with the requests sent to it."""

    def __init__(self, loop: Loop, pid: int, link: socket.socket, on_ended: Callable[[bool], None]) -> None:
        """Use a child of this process as a zygote; calls ``on_ended`` with whether it has ever answered."""
        self.pid = pid
        self.warm: spawn.WarmOrder | None = None
        self.warm_key = ""
        self._loop = loop
        self._on_ended = on_ended
        self._has_answered = False
        self._unsent: deque[tuple[bytes, list[int]]] = deque()
        link.setblocking(False)
        self._link = link
        loop.watch(link.fileno(), self._on_link_ready)

    def request_fork(
        self, command: spawn.Command, on_started: Callable[[spawn.Child], None], on_refused: Callable[[str], None]
    ) -> PendingFork:
        """Request a fork for a task.

        Raises:
            OSError: no descriptors are left.
        """
        output, output_end = spawn.make_output_pipe()
        report, report_end = socket.socketpair()
        report.setblocking(False)
        _set_preload(command, ",".join(command.modules))
        place = {"workdir": command.workdir, "is_function": command.search is not None}
        fields = {"kind": "fork", "argv": command.argv, "env": command.env, **place}
        self._unsent.append((encode_message(fields), [output_end, report_end.detach()]))
        pending = PendingFork(self._loop, output, report, command.secrets, on_started, on_refused)
        timer = self._loop.call_at(self._loop.now() + _IMPORT_TIMEOUT, lambda: _kill_process(self.pid))

        def on_answer(has_answered: bool) -> None:
            timer.cancel()
            self._has_answered = self._has_answered or has_answered

        pending.on_answer = on_answer
        self._send_requests()
        return pending

    def keep_warm(self) -> bool:
        """Ask the zygote to become a warm server; return whether it did, and lives on when this process ends."""
        if self.warm is None or not self.warm_key:
            return False
        order = {"kind": "stay", "path": self.warm.path, "idle": self.warm.idle, "key": self.warm_key}
        self._link.settimeout(_STAY_PATIENCE)
        try:
            send_message(self._link, order)
            return bool(receive_message(self._link)[0]["kind"] == "warm")
        except (OSError, EOFError, ValueError, LookupError):
            return False

    def _on_link_ready(self) -> None:
        """Send requests when the link is writable, and notice its end.

        The zygote sends nothing over it, so it is readable only at its end.
        """
        try:
            if not self._link.recv(1):
                self._on_link_closed()
                return
        except BlockingIOError:
            pass
        except OSError:
            self._on_link_closed()
            return
        self._send_requests()

    def _send_requests(self) -> None:
        while self._unsent and self._link.fileno() >= 0:
            data, descriptors = self._unsent[0]
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
            try:
                sent = self._link.sendmsg([data], rights, socket.MSG_NOSIGNAL)
            except BlockingIOError:
                break
            except OSError:
                break  # the read side notices the end of the link
            for descriptor in descriptors:
                os.close(descriptor)
            self._unsent[0] = data[sent:], []
            if sent == len(data):
                self._unsent.popleft()
        self._loop.watch_writable(self._link.fileno(), bool(self._unsent))

    def _on_link_closed(self) -> None:
        """Close the unsent requests, so that every request is answered.

        The kernel closes those that the zygote had received.
        """
        self._loop.forget(self._link.fileno())
        self._link.close()
        kill_and_reap(self._loop, self.pid)
        for _, descriptors in self._unsent:
            for descriptor in descriptors:
                os.close(descriptor)
        self._unsent.clear()
        self._on_ended(self._has_answered)


def _start_import(command: spawn.Command, path: str, settings: TaskSettings) -> tuple[socket.socket, spawn.Child]:
    """Start a process that imports the modules of a task; return the connection to it.

    Raises:
        OSError: the system refuses another process.
    """
    link, theirs = socket.socketpair()
    try:
        theirs.set_inheritable(True)
        arguments = ["-c", _CODE, str(theirs.fileno()), ",".join(command.modules), *_search_path(command)]
        env = {name: value for name, value in command.env.items() if name not in _TASK_VARIABLES}
        own = spawn.Command(
            [path, *_unbuffered_flag(command.argv), *arguments],
            {**env, **_FEWER_THREADS},
            command.workdir,
            argv0=command.argv[0],
        )
        return link, spawn.start_process(own, settings)
    except OSError:
        link.close()
        raise
    finally:
        theirs.close()


def _discard_output(loop: Loop, child: spawn.Child) -> None:
    """Discard a zygote's output, so that it never blocks; tasks write the imports' output themselves."""

    def discard() -> None:
        try:
            data = os.read(child.output, _READ)
        except BlockingIOError:
            return
        if not data:
            close(child.output)

    def close(descriptor: int) -> None:
        loop.forget(descriptor)
        os.close(descriptor)

    loop.watch(child.output, discard)
    loop.watch(child.start_report, lambda: close(child.start_report))


def kill_and_reap(loop: Loop, pid: int) -> None:
    """Kill a child of this process and reap it, without blocking."""
    _kill_process(pid)
    found, _ = os.waitpid(pid, os.WNOHANG)
    if not found:
        loop.call_at(loop.now() + _REAP_INTERVAL, lambda: kill_and_reap(loop, pid))


def _kill_process(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def _set_preload(command: spawn.Command, value: str) -> None:
    command.preload = command.env[PRELOAD] = value


def _zygote_key(command: spawn.Command, path: str) -> tuple[object, ...]:
    """Return the properties that tasks must share to be forked from the same zygote."""
    env = sorted(item for item in command.env.items() if item[0] not in _TASK_VARIABLES)
    flags, search = tuple(_unbuffered_flag(command.argv)), tuple(_search_path(command))
    return path, command.argv[0], flags, command.modules, search, command.workdir, tuple(env)


def _search_path(command: spawn.Command) -> list[str]:
    """Return the directories that a task's function searches after its interpreter's own; its first is the current."""
    here = os.path.realpath(command.workdir)
    return [place for place in command.search or () if place != here]


def _unbuffered_flag(argv: list[str]) -> list[str]:
    return ["-u"] if argv[1:2] == ["-u"] else []


def _warm_key(command: spawn.Command, path: str) -> str:
    """Return a hash of the properties that tasks of different runs must share to be forked from the same zygote.

    Returns "" if they depend on the working directory.
    """
    if not all(place.startswith("/") for place in command.env.get("PYTHONPATH", "/").split(":")):
        return ""
    env = {name: value for name, value in warm_client.without_noise(command.env).items() if name not in _TASK_VARIABLES}
    flags, search = _unbuffered_flag(command.argv), _search_path(command)
    known = [path, command.argv[0], flags, command.modules, search, sorted(env.items())]
    return hashlib.sha256(json.dumps(known).encode("ascii")).hexdigest()
