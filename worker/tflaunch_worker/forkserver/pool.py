"""The nursery: processes that have imported what tasks will import, one for each environment, and the tasks' births.

Such a process, a `zygote`, is started when the first task asks for it and stays for later attempts; it ends
with the agent. A task is forked in three steps, so that whatever dies or is too late in between, no program runs
unknown to us: the zygote is sent the request with the ends of two connections; the fork says its number over one of
them; and only our answer lets it go on. Where the connection ends without a number, the task is started in the
ordinary way.

Standard library only, Python >= 3.8: this module runs on hosts.
"""

from __future__ import annotations

import array
import json
import os
import signal
import socket
from collections import deque

from tflaunch_worker import linux, spawn
from tflaunch_worker.forkserver import program_source

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable

    from tflaunch_worker.loop import Loop

PRELOAD = "TFLAUNCH_PRELOAD"
"""The variable in which a task finds the modules that were imported for it, or "no: " and the reason."""

_OF_A_TASK = ("TF_CONFIG", "TFLAUNCH_TASK", "TFLAUNCH_ATTEMPT", "TFLAUNCH_TASK_DIR", "TFLAUNCH_PROGRESS", PRELOAD)
_FEWER_THREADS = {"OPENBLAS_NUM_THREADS": "1"}  # OpenBLAS would start its threads while it is imported
_ROOM = {"TFLAUNCH_ROOM": " " * (600 + 4096)}  # for a name, a task, and the longest path
_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# The working directory, "", must not be looked into: it may have a module of any name.
_CODE = (
    f"import sys; sys.path[: sys.path[:1] == ['']] = [{_ROOT!r}]; "
    "from tflaunch_worker.forkserver import server; server.main()"
)
_PATIENCE = 120.0  # seconds that imports may take; what takes longer may never end
_LOOK_AGAIN = 0.05  # seconds
_READ = 64 * 1024
_GO = b"g"


class Nursery:
    """The zygotes of this host."""

    def __init__(self, loop: Loop, forks: set[int]) -> None:
        """Take the processes that were forked into ``forks``."""
        self._loop = loop
        self._forks = forks
        self._zygotes: dict[tuple[object, ...], Zygote] = {}
        self._bad: dict[tuple[object, ...], str] = {}

    def start(
        self,
        command: spawn.Command,
        terms: spawn.Terms,
        born: Callable[[spawn.Child], None],
        refused: Callable[[], None],
    ) -> Birth | None:
        """Have a task forked: ``born`` is called with it, or ``refused`` when it must be started in the ordinary way.

        The command then says how, and why not (``preload``). If that is known at once, it is called before this
        returns, and there is no birth to wait for.
        """

        def bear(started: spawn.Child) -> None:
            self._forks.add(started.pid)
            born(started)

        def refuse(reason: str) -> None:
            _note(command, f"no: {reason}")
            refused()

        reason = program_source.reason_in_words(command.argv)
        path = "" if reason else spawn.program_of(command)
        if not reason and not path:
            reason = f"{command.argv[0]} is not the interpreter itself"
        key = _key(command, path)
        reason = reason or self._bad.get(key, "")
        if not reason:
            try:
                zygote = self._zygotes.get(key) or self._new(key, command, path, terms)
                return zygote.ask(command, bear, refuse)
            except OSError as error:
                reason = f"no process: {error.strerror}"
        refuse(reason)
        return None

    def _new(self, key: tuple[object, ...], command: spawn.Command, path: str, terms: spawn.Terms) -> Zygote:
        def ended(has_served: bool) -> None:
            del self._zygotes[key]
            if not has_served:
                self._bad[key] = "the process that imports for it has died of that"

        self._zygotes[key] = Zygote(self._loop, command, path, terms, ended)
        return self._zygotes[key]


class Birth:
    """A task that is being forked. Until it is born no process of it runs anything of its program."""

    def __init__(
        self,
        loop: Loop,
        output: int,
        report: socket.socket,
        born: Callable[[spawn.Child], None],
        refused: Callable[[str], None],
    ) -> None:
        self._loop = loop
        self._output = output
        self._report = report
        self._born = born
        self._refused = refused
        self._heard = b""
        self._is_wanted = True
        self.answered: Callable[[bool], None] = lambda _: None
        """Called when it is known what became of it: whether the zygote has answered."""
        loop.watch(report.fileno(), self._read)

    def cancel(self) -> None:
        """Have no task born; a process that was forked for it ends without having run anything."""
        self._is_wanted = False

    def _read(self) -> None:
        try:
            data = self._report.recv(_READ)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self._heard += data
        if data and b"\n" not in self._heard:
            return
        self._loop.forget(self._report.fileno())
        kind, _, rest = self._heard.decode("utf-8", "replace").partition("\n")[0].partition(" ")
        self.answered(bool(data))
        if kind == "pid" and rest.isdecimal() and linux.parent_of(int(rest)) == os.getpid():
            self._begin(int(rest))
        else:
            self._close()
            if self._is_wanted:
                self._refused(rest if kind == "no:" else "the process that imports for it has died")

    def _begin(self, pid: int) -> None:
        """Let the fork go on; one that has died meanwhile is a task that died."""
        if not self._is_wanted:
            self._close()
            bury(self._loop, pid)
            return
        try:
            self._report.send(_GO)
        except OSError:
            pass
        self._born(spawn.Child(pid, self._output, self._report.detach()))

    def _close(self) -> None:
        self._report.close()
        os.close(self._output)


class Zygote:
    """One process that imports, and the requests to it."""

    def __init__(
        self, loop: Loop, command: spawn.Command, path: str, terms: spawn.Terms, ended: Callable[[bool], None]
    ) -> None:
        """Start it, for tasks like ``command``.

        Raises:
            OSError: no process could be made.
        """
        self._loop = loop
        self._ended = ended
        self._has_served = False
        self._waiting: deque[tuple[bytes, list[int]]] = deque()
        link, theirs = socket.socketpair()
        try:
            theirs.set_inheritable(True)
            # A last word of blanks is room for the command lines of tasks.
            words = ["-c", _CODE, str(theirs.fileno()), ",".join(command.modules), " " * 600]
            argv = [path, *_flags(command.argv), *words]
            env = {name: value for name, value in command.env.items() if name not in _OF_A_TASK}
            started = spawn.Command(argv, {**env, **_ROOM, **_FEWER_THREADS}, command.workdir, name=command.argv[0])
            self._child = spawn.start(started, terms)
        except OSError:
            link.close()
            raise
        finally:
            theirs.close()
        link.setblocking(False)
        self._link = link
        loop.watch(link.fileno(), self._serve)
        loop.watch(self._child.output, self._drain)
        loop.watch(self._child.start_report, self._read_start_report)

    def ask(self, command: spawn.Command, born: Callable[[spawn.Child], None], refused: Callable[[str], None]) -> Birth:
        """Have a task forked.

        Raises:
            OSError: no pipe could be made.
        """
        output, output_end = spawn.output_pipe()
        report, report_end = socket.socketpair()
        report.setblocking(False)
        _note(command, ",".join(command.modules))
        words = {"argv": command.argv, "env": command.env, "workdir": command.workdir}
        request = json.dumps(words).encode("ascii")
        self._waiting.append((len(request).to_bytes(4, "big") + request, [output_end, report_end.detach()]))
        birth = Birth(self._loop, output, report, born, refused)
        timer = self._loop.at(self._loop.now() + _PATIENCE, self._kill)

        def answered(has_served: bool) -> None:
            timer.cancel()
            self._has_served = self._has_served or has_served

        birth.answered = answered
        self._send()
        return birth

    def _serve(self) -> None:
        """The link is writable, or at its end: the zygote itself never says anything."""
        try:
            if not self._link.recv(1):
                self._end()
                return
        except BlockingIOError:
            pass
        except OSError:
            self._end()
            return
        self._send()

    def _send(self) -> None:
        while self._waiting and self._link.fileno() >= 0:
            data, descriptors = self._waiting[0]
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
            try:
                sent = self._link.sendmsg([data], rights, socket.MSG_NOSIGNAL)
            except BlockingIOError:
                break
            except OSError:
                break  # its end is noticed where it is read
            for descriptor in descriptors:
                os.close(descriptor)
            self._waiting[0] = data[sent:], []
            if sent == len(data):
                self._waiting.popleft()
        self._loop.watch_writable(self._link.fileno(), bool(self._waiting))

    def _read_start_report(self) -> None:
        self._loop.forget(self._child.start_report)
        os.close(self._child.start_report)

    def _drain(self) -> None:
        """Nobody wants to read what a zygote writes; what imports write is in every task's output."""
        try:
            data = os.read(self._child.output, _READ)
        except BlockingIOError:
            return
        if not data:
            self._loop.forget(self._child.output)
            os.close(self._child.output)

    def _kill(self) -> None:
        """It takes too long: have the tasks that wait for it started without it."""
        _kill(self._child.pid)

    def _end(self) -> None:
        """It has died, or will: what it was not yet sent is not forked, and what it has got is closed by the kernel."""
        self._loop.forget(self._link.fileno())
        self._link.close()
        bury(self._loop, self._child.pid)
        for _, descriptors in self._waiting:
            for descriptor in descriptors:
                os.close(descriptor)
        self._waiting.clear()
        self._ended(self._has_served)


def _note(command: spawn.Command, how: str) -> None:
    command.preload = command.env[PRELOAD] = how


def bury(loop: Loop, pid: int) -> None:
    """Kill a child of ours and wait for its end, without standing still."""
    _kill(pid)
    found, _ = os.waitpid(pid, os.WNOHANG)
    if not found:
        loop.at(loop.now() + _LOOK_AGAIN, lambda: bury(loop, pid))


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def _key(command: spawn.Command, path: str) -> tuple[object, ...]:
    """What tasks have in common that can be forked from the same process."""
    env = sorted(item for item in command.env.items() if item[0] not in _OF_A_TASK)
    return path, command.argv[0], tuple(_flags(command.argv)), command.modules, command.workdir, tuple(env)


def _flags(argv: list[str]) -> list[str]:
    return ["-u"] if argv[1:2] == ["-u"] else []
