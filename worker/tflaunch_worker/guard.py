"""The guard: parent of the agent, and adopter of all that tasks leave behind.

It only waits. Processes whose parent dies become its children, however often they forked and whatever session they
moved to. When the agent is gone, for whatever reason (kill -9 included), the guard kills everything that is left and
exits. If guard and agent are killed together, the kernel kills the tasks, because each asked for that before it
started (PR_SET_PDEATHSIG). Processes that the tasks had started survive; the next guard kills them before its agent
starts anything, and so does every command that inspects the run (`orphans`).

Usage: python -c '<import and call main>' SOCKET-DESCRIPTOR DIRECTORY TITLE

At its end the agent names what it leaves behind on purpose, for later runs; the guard spares that.

While it lives it holds a lock in the directory, so that a host has at most one agent per run.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import sys

from tflaunch_worker import (
    LOCK_NAME,
    LOG_NAME,
    SOCKET_NAME,
    TASKS_NAME,
    file_trees,
    linux,
    orphans,
    process_ends,
    process_state,
    procfs,
)
from tflaunch_worker.agent.daemon import serve
from tflaunch_worker.signals import ENDING, OF_TERMINALS
from tflaunch_worker.socket_messages import receive_message, send_message

_HOLDER_DIES = 1.0  # seconds for a killed agent to let go of its lock
_AWAITED = {*ENDING, signal.SIGCHLD}
_SENDS_TO_TREE = ("slurmstepd\n",)
"""Programs that send a signal to us only together with all our descendants, as the names in /proc/PID/comm.

Slurm's signals reach the processes that its daemon has started: with cgroups only these (proctrack_cgroup.c), which we
never are; with proctrack/linuxproc all their descendants (kill_tree.c).
"""
_OTHERS_PATIENCE = 1.0  # seconds for orphans of other agents to die


def main() -> None:
    """Guard the agent of the command line's directory; the last argument is a title."""
    gc.set_threshold(50_000)  # as in `tflaunch.__main__`; and a collection writes to pages that forks would share
    guard(sys.argv[2], int(sys.argv[1]))


def guard(directory: str, descriptor: int) -> None:
    """Fork an agent that serves a socket, and guard it until it exits. Never returns."""
    process_state.set_own_state([descriptor])
    os.set_inheritable(descriptor, False)  # it is for us, not for the tasks
    umask = os.umask(0o077)
    prepare(directory)
    # Taken before the fork: if we die in between, the agent finds another parent and ends.
    parent = os.getpid()
    channel, theirs = socket.socketpair()
    agent = os.fork()
    if agent == 0:
        channel.close()
        run_agent(directory, descriptor, umask, parent, theirs)
    theirs.close()
    os.close(descriptor)
    guard_until_end(directory, agent, channel)


def prepare(directory: str) -> int:
    """Become a directory's only guard, without terminal; return the lock's descriptor."""
    # Before there is an agent: a signal that ended us now would look like a killed guard to it. `_wait_for` takes them
    # with their sender; the agent, a fork, unblocks them when it can handle them.
    for number in OF_TERMINALS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, _AWAITED)
    detach(directory)
    was_there, lock = _lock(directory)
    # The kernel releases a lock with the last descriptor of it, however its holders died, so a free one shows that
    # guard and agent are gone. The lock file outlives only an agent that was killed: an orderly end removes it.
    left = orphans.sweep(directory, is_held=True) if was_there else []  # no attempt may start before they are dead
    if left:
        sys.exit(f"processes of an earlier attempt do not die on this host: {', '.join(map(str, left))}")
    linux.adopt_orphans()
    return lock


def guard_until_end(directory: str, agent: int, channel: socket.socket) -> None:
    """Guard the agent until it exits, then kill what it has left. Never returns."""
    # Not before the fork: the agent need not wait until all processes have been looked at.
    orphans.sweep(patience=_OTHERS_PATIENCE, is_guard=True)  # of other runs, while the agent already works
    status = _wait_for(agent, channel)
    # As their subreaper, this process has become the parent of all that the tasks have left, whatever sessions and
    # forks they hid behind; what is below it is theirs alone.
    process_ends.kill_below(_spared(channel) if status == 0 else ())
    _tidy(directory)
    os._exit(0 if status == 0 else 1)  # nothing is left to clean up, and the user waits for this exit


def _spared(channel: socket.socket) -> set[int]:
    """Return the children of the agent that may outlive it."""
    try:
        return set(receive_message(channel)[0]["spared"])
    except (OSError, EOFError, ValueError, LookupError):
        return set()  # it was not asked to keep any


def run_agent(directory: str, descriptor: int, umask: int, parent: int, channel: socket.socket) -> None:
    """Run the agent in this process. Never returns."""
    code = 1
    try:
        linux.die_with_parent(signal.SIGTERM)
        # A parent that died before the line above sends no signal any more: then another process is the parent now.
        if os.getppid() == parent:
            spared = serve(directory, socket.socket(fileno=descriptor), umask, channel)
            # A guard that was killed can no longer clean up, so the agent, which is ending anyway, does it.
            if os.getppid() != parent or procfs.is_exiting(parent):
                orphans.sweep(directory, is_held=True)  # the dying guard adopts nothing, and we look only below it
            elif spared:
                send_message(channel, {"spared": spared})
        code = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stderr.flush()
        os._exit(code)


def detach(directory: str) -> None:
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


def _lock(directory: str) -> tuple[bool, int]:
    """Hold the lock while this process or the agent lives; remove an earlier socket.

    Returns whether an earlier agent was killed: only then its lock file is still there; and the lock's descriptor.
    """
    path = os.path.join(directory, LOCK_NAME)
    was_there = os.path.exists(path)
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    if not linux.take_lock(lock, _HOLDER_DIES):
        sys.exit("another agent of this run still lives on this host")
    _remove(os.path.join(directory, SOCKET_NAME))
    return was_there, lock


def _tidy(directory: str) -> None:
    """Remove files no longer needed; keep a nonempty log and files that are not ours."""
    file_trees.remove_tree(os.path.join(directory, TASKS_NAME))
    _remove(os.path.join(directory, SOCKET_NAME))
    log = os.path.join(directory, LOG_NAME)
    if os.fstat(2).st_size == 0:
        _remove(log)
    _remove(os.path.join(directory, LOCK_NAME))
    agents = os.path.dirname(directory)
    for place in (directory, agents, os.path.dirname(agents)):
        _remove(place)


def _remove(path: str) -> None:
    """Remove a file, a link or an empty directory, if there is one."""
    try:
        try:
            os.rmdir(path)
        except NotADirectoryError:
            os.unlink(path)
    except OSError:
        pass  # it does not exist, or is not empty


def _wait_for(agent: int, channel: socket.socket) -> int:
    """Reap adopted processes; return the agent's exit status once it is dead.

    Signals are forwarded to the agent, which stops the tasks first, with a note if they have got the same one.
    """
    while True:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == agent:
            return status
        if pid != 0:
            continue
        # Blocked signals wait: one that comes between `waitpid` and this line is not lost, as it would be to a handler.
        came = signal.sigwaitinfo(_AWAITED)  # no limit: it waits as long as its agent lives
        if came.si_signo in ENDING:
            if procfs.read(f"/proc/{came.si_pid}/comm") in _SENDS_TO_TREE:
                _tell(channel, came.si_signo)
            os.kill(agent, signal.SIGTERM)


def _tell(channel: socket.socket, number: int) -> None:
    try:
        send_message(channel, {"kind": "tasks_told", "signal": number})
    except OSError:
        pass  # the agent is ending
