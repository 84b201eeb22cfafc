"""Start an agent on this machine, with a socket pair that it inherits."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
from pathlib import Path

import tflaunch_worker
from tflaunch import private_files
from tflaunch.transport.base import AgentGoneError, LinkError
from tflaunch_worker import boot, feature, linux, orphans, procfs

_BOOT = "import sys; sys.path.insert(0, {root!r}); from tflaunch_worker.guard import main; main()"
# -I -S: nothing in the user's environment can change which agent starts, or how fast.
_PYTHON = (sys.executable, "-I", "-S", *(("-X", f"pycache_prefix={sys.pycache_prefix}") if sys.pycache_prefix else ()))
_TITLE = "tflaunch-agent:"
_END_PATIENCE = 10.0


class LocalConnector:
    """Starts a run's guard and agent on this machine."""

    def __init__(self, directory: Path, run: str, warm: str | None = None) -> None:
        """Prepare to start guard and agent.

        Args:
            directory: a private directory for the agent's socket, spools and log; created if it is missing.
            run: the run's name, shown in process lists.
            warm: the recipe of a process of an earlier run that may start them (see `feature.start_guard`).
        """
        self._directory = directory
        self._run = run
        self._warm = warm
        self.guard: subprocess.Popen[bytes] | None = None
        self._guards: list[int] = []  # at most one pidfd, not yet waited for; a list: its `pop` is atomic

    def open(self) -> LocalLink:
        """Start guard and agent; raises `LinkError` if that is not possible."""
        ours, theirs = socket.socketpair()
        place, title = str(self._directory), f"{_TITLE}{self._run}"
        program = _BOOT.format(root=str(Path(tflaunch_worker.__file__).parent.parent))
        try:
            boot.require_processes()
            private_files.make_directories(self._directory)
            if self._warm is not None:
                guard = feature.start_guard(self._warm, _PYTHON, place, title, theirs)
                self._note_guard(guard)
                if guard is not None:
                    return LocalLink(ours)
            argv = [*_PYTHON, "-c", program, str(theirs.fileno()), place, title]
            self.guard = subprocess.Popen(
                argv, pass_fds=[theirs.fileno()], start_new_session=True, stdin=subprocess.DEVNULL
            )
        except (OSError, boot.BootError) as error:
            ours.close()
            raise LinkError(f"the agent cannot be started: {error}") from None
        finally:
            theirs.close()
        self._note_guard(linux.open_pidfd(self.guard.pid))
        return LocalLink(ours)

    def resume(self) -> LocalLink:
        """Connect to the agent's socket, or wait for the guard, which outlives all others.

        Raises:
            AgentGoneError: the agent has exited and no process of its tasks is left; with the last line of its log.
            LinkError: the guard, or a process that a killed guard left behind, does not exit.
        """
        link = self._connected()
        if link is not None:
            return link
        self._wait_for_guard()
        if linux.is_lock_free(str(self._directory / tflaunch_worker.LOCK_NAME)) is False:
            raise LinkError("its guard does not end")
        left = self._kill_orphans()
        if left:
            raise LinkError(f"processes of its tasks do not die: {', '.join(map(str, left))}")
        raise AgentGoneError(self._last_words())

    def end(self) -> None:
        """Wait up to 10 s for the guard to exit, and kill what a killed guard left behind."""
        self._wait_for_guard()
        self._kill_orphans()

    def _kill_orphans(self) -> list[int]:
        """Kill what a killed guard left behind; return the PIDs that survive.

        A guard that exits by itself removes its lock.
        """
        if not (self._directory / tflaunch_worker.LOCK_NAME).exists():
            return []
        return orphans.sweep(str(self._directory))

    def _note_guard(self, end: int | None) -> None:
        """Wait for the guard of this pidfd from now on, and for no earlier one."""
        if (earlier := self._take_guard()) is not None:
            os.close(earlier)
        if end is not None:
            self._guards.append(end)

    def _take_guard(self) -> int | None:
        """Take the guard to wait for: `resume` may wait for one when the next is started."""
        try:
            return self._guards.pop()
        except IndexError:
            return None

    def _wait_for_guard(self) -> None:
        """Wait up to 10 s for the guard to exit; `Popen.wait` with a timeout would poll."""
        end, started = self._take_guard(), self.guard
        if end is None:
            return
        select.select([end], [], [], _END_PATIENCE)
        os.close(end)
        if started is not None:
            started.poll()  # reap it

    def _connected(self) -> LocalLink | None:
        """Connect to the socket of an agent that another started; None without one."""
        try:
            connection = linux.connect_to(str(self._directory), tflaunch_worker.SOCKET_NAME)
        except OSError:
            return None
        agent, _ = linux.peer_of(connection)
        guard = procfs.parent_of(agent)
        self._note_guard(None if guard is None else linux.open_pidfd(guard))
        return LocalLink(connection)

    def _last_words(self) -> str:
        """Return the last line of the agent's log, the exception of a traceback.

        Without a log, return why it cannot be created, "" if it can: then the agent has ended as it should.
        """
        log = self._directory / tflaunch_worker.LOG_NAME
        if log.exists():
            return boot.last_line(str(log))
        try:
            log.touch()
            log.unlink()
        except FileNotFoundError:
            pass
        except OSError as error:
            return str(error)
        return ""


class LocalLink:
    """The supervisor's end of a connection on this machine."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection

    def close(self) -> None:
        """Close the link."""
        self.socket.close()
