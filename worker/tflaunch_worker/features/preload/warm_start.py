"""What guard and agent of a run execute that a warm server has forked.

They differ from others in this: the agent exists before its guard runs, so it waits until the guard holds the lock, and
it has a child that has imported modules.
"""

import gc
import os
import socket
import sys

from tflaunch_worker import guard, process_state
from tflaunch_worker.features.preload.pool import WarmZygote, ZygotePool
from tflaunch_worker.socket_messages import receive_message, send_message


def main_of_guard() -> None:
    """Guard an existing agent. Arguments: socket to it, pid, directory and title."""
    gc.set_threshold(50_000)  # as in `guard.main`
    channel, agent, directory = socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]), sys.argv[3]
    process_state.set_own_state([channel.fileno()])
    channel.set_inheritable(False)
    os.umask(0o077)
    lock = guard.prepare(directory)
    send_message(channel, {"kind": "guarded"}, [lock])
    guard.guard_until_end(directory, agent, channel)


def main_of_agent() -> None:
    """Run the agent in this process, whose parent becomes its guard.

    Arguments: sockets to the guard, to the first client and to the child that has imported modules; the pid of this
    child, and the key of its tasks; the directory and a title.
    """
    gc.set_threshold(50_000)
    channel, link, zygote_link, zygote = map(int, sys.argv[1:5])
    process_state.set_own_state([channel, link, zygote_link])
    for descriptor in (channel, link, zygote_link):
        os.set_inheritable(descriptor, False)
    ZygotePool.inherited = WarmZygote(zygote, zygote_link, sys.argv[5])
    directory, umask = sys.argv[6], os.umask(0o077)
    theirs = socket.socket(fileno=channel)
    receive_message(theirs)  # it has a descriptor of the lock, which stays open
    guard.detach(directory)
    guard.run_agent(directory, link, umask, os.getppid(), theirs)
