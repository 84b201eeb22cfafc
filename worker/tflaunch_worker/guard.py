"""The guard: parent of the agent, and heir of every process that a task leaves behind.

It does nothing but wait. Processes whose parent dies become its children, however often they forked
and whatever session they moved to. When the agent is gone, for whatever reason (kill -9 included),
the guard kills all that is left and exits. Should guard and agent be killed together, the kernel
kills the tasks: each asked for that before it started (PR_SET_PDEATHSIG). What the tasks had started lives on; the
next guard kills it before its agent starts anything, and so does every command that looks at the run (`orphans`).

Usage: python -c '<import and call main>' SOCKET-DESCRIPTOR TITLE

It may be started before it is known what for: it waits for the directory and a title on its input, each with a zero
byte behind it, and has done nothing when there are none.

While it lives it holds a lock in the directory: there is one agent of a run on a host, or none.

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
from tflaunch_worker.daemon import serve

_PATIENCE = 60  # seconds for who started it to say what for
_LOCK_TRIES, _LOCK_WAIT = 20, 0.005  # a process that only looks holds the lock for a moment
_OTHERS_PATIENCE = 1.0  # seconds for orphans of other agents to die


def main() -> None:
    """Do what the command line says."""
    gc.set_threshold(50_000)  # as `tflaunch.__main__`; and a search writes to pages that forks would share
    signal.alarm(_PATIENCE)
    words = b""
    while words.count(b"\0") < 2:
        more = os.read(0, 4096)
        if not more:
            os._exit(0)  # it was not needed
        words += more
    signal.alarm(0)
    directory, title, _ = map(os.fsdecode, words.split(b"\0"))
    # Only here: an agent at the end of a link has its title from the start.
    from tflaunch_worker import process_title

    try:
        process_title.set_process_title([*sys.orig_argv[:-1], title], os.environ)
    except OSError:
        pass  # only people look for it
    guard(directory, int(sys.argv[1]))


def guard(directory: str, descriptor: int) -> None:
    """Fork the agent, and guard it to its end. Never returns.

    Args:
        directory: the agent's, and nobody else's.
        descriptor: a socket to the agent's first client.
    """
    os.set_inheritable(descriptor, False)  # it was given to us, not to the tasks
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
    orphans.sweep(patience=_OTHERS_PATIENCE)  # of other runs; meanwhile the agent works
    status = _wait_for(agent)
    _kill_the_rest()
    _tidy(directory)
    os._exit(0 if status == 0 else 1)  # nothing is left to clean up, and people wait for this


def _run_agent(directory: str, descriptor: int, umask: int, parent: int) -> None:
    """Be the agent. Never returns."""
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
    """Leave the terminal alone: no input, words to a log of our own."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    try:
        log = os.open(os.path.join(directory, LOG_NAME), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    except OSError:  # a full disk, which the supervisor hears of
        log = os.open(os.devnull, os.O_WRONLY)
    for source, target in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    os.close(nothing)
    os.close(log)


def _lock(directory: str) -> bool:
    """Hold the lock until this process and the agent have ended; what an earlier agent left is void.

    Returns whether there was an earlier agent that did not end by itself: such a one leaves the lock's file.
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
    """Kill what tasks of an earlier agent have left; without that no attempt may begin here."""
    left = orphans.sweep(directory, is_held=True)
    if left:
        sys.exit(f"processes of an earlier attempt do not die on this host: {', '.join(map(str, left))}")


def _tidy(directory: str) -> None:
    """Remove what nobody needs any more; a log with words in it stays, and so does what is not ours."""
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
    """Remove the directories of all tasks: most are empty, so each is tried before it is looked into."""
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
        pass  # it is not there, or somebody still has something in it


def _pass_on_term(agent: int) -> None:
    """A guard that is asked to end asks the agent, which ends the tasks first."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: os.kill(agent, signal.SIGTERM))


def _wait_for(agent: int) -> int:
    """Bury adopted processes as they die; return the agent's exit status once it is dead."""
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == agent:
            return status


def _kill_the_rest() -> None:
    """Kill every process that was left to us, and what they leave to us in turn."""
    while True:
        left = linux.descendants(os.getpid(), without=0)
        killed = [_kill(pid) for pid in left]
        if left and not any(killed):
            return  # none of them is ours to kill: they changed their user
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
