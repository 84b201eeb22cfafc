"""An agent's view of a zygote: its start, requests for forks, and pending forks.

A task is forked in three steps, so that no program runs without the agent's knowledge, even if a process dies or is
slow: the zygote gets the request with the ends of two connections; the fork sends its pid over one of them; it
continues only after the agent's answer, which has the task's secrets. If the connection ends without a pid, the task
is started as usual.
"""

from __future__ import annotations

import array
import os
import signal
import socket
from collections import deque
from typing import Callable, NamedTuple

from tflaunch_worker import linux, procfs, spawn
from tflaunch_worker.event_loop import Loop
from tflaunch_worker.features.preload.source_checks import PRELOAD, READ_WITH_DEVICES
from tflaunch_worker.features.preload.warm_client import ROOT
from tflaunch_worker.process_state import TaskSettings
from tflaunch_worker.socket_messages import Message, encode_message, receive_message, send_message

_TASK_VARIABLES = ("TF_CONFIG", "TFLAUNCH_TASK", "TFLAUNCH_ATTEMPT", "TFLAUNCH_TASK_DIR", "TFLAUNCH_PROGRESS", PRELOAD)

_JEMALLOC_OPTIONS = "JE_ARROW_MALLOC_CONF"
# "", the working directory, is replaced because it may contain a module of any name.
_SEARCH = f"import sys; sys.path[: sys.path[:1] == ['']] = [{ROOT!r}]"
_CODE = f"{_SEARCH}; from {__package__}.zygote_server import main; main()"
_IMPORT_TIMEOUT = 120.0  # seconds
_LOOK_INTERVAL = 1.0  # seconds
_STAY_PATIENCE = 3.0  # seconds for a zygote to look at all files that it has imported
_GO_PATIENCE = 2.0  # seconds for a fork to read what it is waiting for
_REAP_INTERVAL = 0.05  # seconds
_READ = 64 * 1024
_LONGEST_WORDS = 500  # bytes of output that are kept


class Kind(NamedTuple):
    """What tasks must share to be forked from the same zygote.

    ``path``, ``argv0`` and ``flags``: their interpreter, what the command calls it, and its options. ``search``: the
    directories that functions search after the interpreter's own, whose first is the current one.
    """

    path: str
    argv0: str
    flags: tuple[str, ...]
    modules: tuple[str, ...]
    search: tuple[str, ...]
    workdir: str
    env: tuple[tuple[str, str], ...]


def kind_of(command: spawn.Command, path: str) -> Kind:
    """Return the kind of a task, given the path of its interpreter."""
    flags = ("-u",) if command.argv[1:2] == ["-u"] else ()
    here = os.path.realpath(command.workdir)
    search = tuple(place for place in command.search or () if place != here)
    own = (*_TASK_VARIABLES, *READ_WITH_DEVICES)  # so that tasks with a GPU each share an import
    env = sorted(item for item in command.env.items() if item[0] not in own)
    return Kind(path, command.argv[0], flags, command.modules, search, command.workdir, tuple(env))


class PendingFork:
    """A requested fork, which runs nothing of the task's program before its start."""

    def __init__(
        self,
        loop: Loop,
        zygote: Zygote,
        ends: tuple[int, socket.socket],
        command: spawn.Command,
        on_started: Callable[[spawn.Child], None],
        on_refused: Callable[[str], None],
    ) -> None:
        """Wait for the answer of a zygote, which is killed if it is late or stopped.

        ``ends``: ours of the task's output and of its report; ``on_refused`` gets the reason, "" if the zygote has
        died.
        """
        self._loop = loop
        self._output, self._report = ends
        self._zygote = zygote
        self._command = command
        self._on_started = on_started
        self._on_refused = on_refused
        self._received = b""
        self._is_cancelled = False
        loop.watch(self._report.fileno(), self._read_report)
        self._give_up_at = loop.now() + _IMPORT_TIMEOUT
        self._timer = loop.call_at(loop.now() + _LOOK_INTERVAL, self._look)

    def cancel(self) -> None:
        """Cancel the fork; a process already forked for it is killed before its program."""
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
        self._read_answer()

    def _look(self) -> None:
        """Kill what keeps the answer back, whose end of the report closes then."""
        self._timer = self._loop.call_at(self._loop.now() + _LOOK_INTERVAL, self._look)
        if self._loop.now() >= self._give_up_at or procfs.is_stopped(self._zygote.pid):
            linux.kill(self._zygote.pid, None, signal.SIGKILL)
        for pid in procfs.descendants(os.getpid()):
            if procfs.is_stopped(pid) and self._is_silent_fork(pid):
                _kill_and_reap(self._loop, pid)

    def _is_silent_fork(self, pid: int) -> bool:
        """Return whether a process was forked for a task, and has not sent its pid yet."""
        place = procfs.place_of(pid)
        zygote = self._zygote.pid
        is_own = pid != zygote and place is not None and place.session != pid  # which it has before it sends it
        return is_own and procfs.is_fork(pid) and procfs.command_of(pid) == procfs.command_of(zygote)

    def _read_answer(self) -> None:
        self._timer.cancel()
        self._loop.forget(self._report.fileno())
        kind, _, rest = self._received.decode("utf-8", "replace").partition("\n")[0].partition(" ")
        self._zygote.pending -= 1
        self._zygote.has_answered |= b"\n" in self._received
        pid, _, modules = rest.partition(" ")
        if kind == "pid" and pid.isdecimal() and procfs.parent_of(int(pid)) == os.getpid():
            set_preload(self._command, modules)
            self._continue_fork(int(pid))
        else:
            self._close_fds()
            if not self._is_cancelled:
                self._on_refused(rest if kind == "no:" else "")

    def _continue_fork(self, pid: int) -> None:
        if self._is_cancelled:
            self._close_fds()
            _kill_and_reap(self._loop, pid)
            return
        self._report.settimeout(_GO_PATIENCE)
        try:  # secrets go past the zygote, which may outlive the run
            send_message(self._report, {"kind": "go", "secrets": self._command.secrets})
        except OSError:
            pass  # the fork has died, and so has the task
        self._report.setblocking(False)
        self._zygote.has_forked = True
        self._on_started(spawn.Child(pid, self._output, self._report.detach()))

    def _close_fds(self) -> None:
        self._report.close()
        os.close(self._output)


class Zygote:
    """A process that imports modules, with the requests sent to it."""

    def __init__(
        self,
        loop: Loop,
        pid: int,
        link: socket.socket,
        output: int,
        on_ended: Callable[[str], None],
        stay: Message | None,
    ) -> None:
        """Use a child of this process as a zygote.

        ``output``: the end of its output, -1 for none; ``on_ended`` gets why it cannot be used, "" if it has ever
        answered; ``stay``: the order to become a warm server, None if it must not.
        """
        self.pid = pid
        self._order_to_stay = stay
        self._loop = loop
        self._on_ended = on_ended
        self.has_answered = self.has_forked = False
        self.pending = 0  # requests that wait for an answer
        self._unsent: deque[tuple[bytes, list[int]]] = deque()
        self._output = output
        self._last_output = b""
        if output >= 0:
            loop.watch(output, self._read_output)
        link.setblocking(False)
        self._link = link
        loop.watch(link.fileno(), self._on_link_ready)

    def request_fork(
        self,
        command: spawn.Command,
        is_auto: bool,
        on_started: Callable[[spawn.Child], None],
        on_refused: Callable[[str], None],
    ) -> PendingFork:
        """Request a fork for a task; ``on_refused`` gets the reason, "" if this has died.

        ``is_auto``: the modules are those that its program imports first.

        Raises:
            OSError: no descriptors are left.
        """
        output, output_end = spawn.make_output_pipe()
        report, report_end = socket.socketpair()
        report.setblocking(False)
        place = {"workdir": command.workdir, "is_function": command.search is not None, "is_auto": is_auto}
        fields = {"kind": "fork", "argv": command.argv, "env": command.env, **place}
        self._unsent.append((encode_message(fields), [output_end, report_end.detach()]))

        self.pending += 1
        pending = PendingFork(self._loop, self, (output, report), command, on_started, on_refused)
        self._send_requests()
        return pending

    def end_if_useless(self) -> None:
        """End it if nothing was forked from it, and nothing waits for that."""
        if not (self.has_forked or self.pending):
            linux.kill(self.pid, None, signal.SIGKILL)

    def stay(self) -> bool:
        """Order the zygote to become a warm server; return whether it outlives this agent."""
        if self._order_to_stay is None:
            return False
        self._link.settimeout(_STAY_PATIENCE)
        try:
            send_message(self._link, self._order_to_stay)
            return bool(receive_message(self._link)[0]["kind"] == "warm")
        except (OSError, EOFError, ValueError, LookupError):
            return False

    def _read_output(self) -> None:
        """Keep its output's end, so that it never blocks; tasks write that of imports."""
        try:
            data = os.read(self._output, _READ)
        except BlockingIOError:
            return
        self._last_output = (self._last_output + data)[-_LONGEST_WORDS:]
        if not data:
            _close(self._loop, self._output)
            self._output = -1

    def describe_end(self) -> str:
        """Return that it has died, with the last line that it has written."""
        if self._output >= 0:
            self._read_output()
        lines = self._last_output.decode("utf-8", "replace").split("\n")
        last_line = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return "the process that imports for it has died" + (last_line and f": {last_line}")

    def _on_link_ready(self) -> None:
        """Send requests when the link is writable; it is readable at its end only."""
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
        _kill_and_reap(self._loop, self.pid)
        for _, descriptors in self._unsent:
            for descriptor in descriptors:
                os.close(descriptor)
        self._unsent.clear()
        self._on_ended("" if self.has_answered else self.describe_end())


def start_import(loop: Loop, kind: Kind, settings: TaskSettings, record: str) -> tuple[socket.socket, int, int]:
    """Start a process that imports tasks' modules; return its link, pid and output.

    ``record``: where it remembers why nothing can be forked from it (`refusals`), "" to forget.

    Raises:
        OSError: the system refuses another process.
    """
    link, theirs = socket.socketpair()
    try:
        theirs.set_inheritable(True)
        arguments = ["-c", _CODE, str(theirs.fileno()), record, ",".join(kind.modules), *kind.search]
        env = _with_fewer_threads(dict(kind.env))
        command = spawn.Command([kind.path, *kind.flags, *arguments], env, kind.workdir, argv0=kind.argv0)
        child = spawn.start_process(command, settings)
    except OSError:
        link.close()
        raise
    finally:
        theirs.close()
    loop.watch(child.start_report, lambda: _close(loop, child.start_report))
    return link, child.pid, child.output


def _with_fewer_threads(env: dict[str, str]) -> dict[str, str]:
    """Return an environment in which loaded libraries start no threads.

    Threads do not survive a fork.

    A fork has OpenBLAS start its threads (`become`). The jemalloc in pyarrow, which keras imports through pandas, has
    one that gives memory back to the system; without it, threads that allocate do so. Its other options are kept, as
    of two values for one option jemalloc takes the last.
    """
    options = [env[_JEMALLOC_OPTIONS]] if env.get(_JEMALLOC_OPTIONS) else []
    options.append("background_thread:false")
    return {**env, "OPENBLAS_NUM_THREADS": "1", _JEMALLOC_OPTIONS: ",".join(options)}


def _close(loop: Loop, descriptor: int) -> None:
    loop.forget(descriptor)
    os.close(descriptor)


def _kill_and_reap(loop: Loop, pid: int) -> None:
    """Kill a child of this process and reap it, without blocking."""
    linux.kill(pid, None, signal.SIGKILL)
    try:
        found, _ = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return
    if not found:
        loop.call_at(loop.now() + _REAP_INTERVAL, lambda: _kill_and_reap(loop, pid))


def set_preload(command: spawn.Command, value: str) -> None:
    """Note a task's imported modules, or the refusal, for it and the supervisor."""
    command.preload = command.env[PRELOAD] = value
