"""The guard: parent of the agent, and adoptive parent of every process that a task leaves behind.

It only waits. Processes whose parent dies become its children, however often they forked and whatever session they
moved to. When the agent is gone, for whatever reason (kill -9 included), the guard kills everything that is left and
exits. If guard and agent are killed together, the kernel kills the tasks, because each asked for that before it
started (PR_SET_PDEATHSIG). Processes that the tasks had started survive; the next guard kills them before its agent
starts anything, and so does every command that inspects the run (`orphans`).

Usage: python -c '<import and call main>' SOCKET-DESCRIPTOR DIRECTORY TITLE

While it lives it holds a lock in the directory, so that a host has at most one agent per run.

Standard library only, Python >= 3.8: this module runs on hosts.
"""

from __future__ import annotations

import fcntl
import gc
import os
import signal
import socket
import sys
import time

from tflaunch_worker import LOCK_NAME, LOG_NAME, SOCKET_NAME, TASKS_NAME, linux, orphans
from tflaunch_worker.agent.daemon import serve

_LOCK_TRIES, _LOCK_WAIT = 20, 0.005  # a process that only checks the lock holds it for a moment
_OTHERS_PATIENCE = 1.0  # seconds for orphans of other agents to die


def main() -> None:
    """Guard an agent in the directory of the command line. Its last argument is for people who list processes."""
    gc.set_threshold(50_000)  # as in `tflaunch.__main__`; and a collection writes to pages that forks would share
    guard(sys.argv[2], int(sys.argv[1]))


def guard(directory: str, descriptor: int) -> None:
    """Fork the agent and guard it until it exits. Never returns.

    Args:
        directory: the agent's private directory.
        descriptor: a socket to the agent's first client.
    """
    os.set_inheritable(descriptor, False)  # it is for us, not for the tasks
    umask = os.umask(0o077)
    _detach(directory)
    if _lock(directory):
        _kill_orphans(directory)
    linux.adopt_orphans()
    parent = os.getpid()
    agent = os.fork()
    if agent == 0:
        _run_agent(directory, descriptor, umask, parent)
    os.close(descriptor)
    _pass_on_term(agent)
    orphans.sweep(patience=_OTHERS_PATIENCE)  # of other runs, while the agent already works
    status = _wait_for(agent)
    _kill_the_rest()
    _tidy(directory)
    os._exit(0 if status == 0 else 1)  # nothing is left to clean up, and the user waits for this exit


def _run_agent(directory: str, descriptor: int, umask: int, parent: int) -> None:
    """Run the agent in this fork. Never returns."""
    code = 1
    try:
        linux.die_with_parent(signal.SIGTERM)
        if os.getppid() == parent:
            serve(directory, socket.socket(fileno=descriptor), umask)
        code = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stderr.flush()
        os._exit(code)


def _detach(directory: str) -> None:
    """Detach from the terminal: read from /dev/null, write to our own log."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    try:
        log = os.open(os.path.join(directory, LOG_NAME), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    except OSError:  # the disk is full, which the supervisor learns by other means
        log = os.open(os.devnull, os.O_WRONLY)
    for source, target in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    os.close(nothing)
    os.close(log)


def _lock(directory: str) -> bool:
    """Hold the lock until this process and the agent have ended; remove an earlier agent's socket.

    Returns whether an earlier agent was killed: only then its lock file is still there.
    """
    path = os.path.join(directory, LOCK_NAME)
    was_there = os.path.exists(path)
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    for _ in range(_LOCK_TRIES):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(_LOCK_WAIT)
        else:
            break
    else:
        sys.exit("another agent of this run still lives on this host")
    _remove(os.path.join(directory, SOCKET_NAME))
    return was_there


def _kill_orphans(directory: str) -> None:
    """Kill what the tasks of an earlier agent have left; no attempt may start before that."""
    left = orphans.sweep(directory, is_held=True)
    if left:
        sys.exit(f"processes of an earlier attempt do not die on this host: {', '.join(map(str, left))}")


def _tidy(directory: str) -> None:
    """Remove files that are no longer needed; keep a log with content and files that are not ours."""
    _remove_tasks(os.path.join(directory, TASKS_NAME))
    _remove(os.path.join(directory, SOCKET_NAME))
    log = os.path.join(directory, LOG_NAME)
    if os.fstat(2).st_size == 0:
        _remove(log)
    _remove(os.path.join(directory, LOCK_NAME))
    agents = os.path.dirname(directory)
    for place in (directory, agents, os.path.dirname(agents)):
        _remove(place)


def _remove_tasks(place: str) -> None:
    """Remove the directories of all tasks; most are empty, so try that before walking them."""
    for name in os.listdir(place) if os.path.isdir(place) else ():
        _remove(os.path.join(place, name))
    for parent, directories, files in os.walk(place, topdown=False):
        for name in directories + files:
            _remove(os.path.join(parent, name))
    _remove(place)


def _remove(path: str) -> None:
    try:
        if os.path.isdir(path) and not os.path.islink(path):
            os.rmdir(path)
        else:
            os.unlink(path)
    except OSError:
        pass  # it does not exist, or is not empty


def _pass_on_term(agent: int) -> None:
    """Forward TERM to the agent, which stops the tasks first; ignore INT and HUP."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: os.kill(agent, signal.SIGTERM))


def _wait_for(agent: int) -> int:
    """Reap adopted processes as they die; return the agent's exit status once it is dead."""
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == agent:
            return status


def _kill_the_rest() -> None:
    """Kill every process that we have adopted, and those that we adopt as they die."""
    while True:
        left = linux.descendants(os.getpid(), without=0)
        killed = [_kill(pid) for pid in left]
        if left and not any(killed):
            return  # we may not kill any of them: they have changed their user
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _kill(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIGKILL)
    except PermissionError:
        return False
    except ProcessLookupError:
        pass
    return True
