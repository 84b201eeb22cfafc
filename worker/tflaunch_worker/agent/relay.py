"""Join the private networks of a run's hosts: connections between tasks go through TLS between the hosts.

In each host's network every task of another host has a listener, at its virtual address. The relay accepts a connection
there and connects to the relay of the other host, which listens on the port of one of its tasks and connects to the
task. The first frame of a connection names run, attempt, host and task. Relays authenticate each other by certificates.

The relay is a process of its own (`relay_server`), and ends with the agent. A second process, in the private network,
makes its sockets there (`relay_sockets`).

Standard library only, Python >= 3.8: this module runs on hosts.
"""

from __future__ import annotations

import os
import signal
import socket

from tflaunch_worker import linux
from tflaunch_worker.agent.relay_server import RelayServer
from tflaunch_worker.agent.relay_sockets import make_sockets
from tflaunch_worker.forkserver.messages import receive_message, send_message

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Sequence

    from tflaunch_worker.agent.relay_frames import Network
    from tflaunch_worker.event_loop import Loop


class Relay:
    """Start the relay of an agent, and configure it.

    ``refused(task, source, reason, count)`` is called for refused connections, ``ended()`` if the relay exits.
    """

    def __init__(
        self,
        loop: Loop,
        namespaces: Sequence[int],
        refused: Callable[[str, str, str, int], None],
        ended: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._refused = refused
        self._ended = ended
        self._channel, theirs = socket.socketpair()
        to_maker, maker_end = socket.socketpair()
        with theirs, to_maker, maker_end:
            _start(lambda: make_sockets(maker_end, namespaces), maker_end, namespaces)
            _start(lambda: RelayServer(theirs, to_maker).serve(), theirs, [to_maker.fileno()])
        loop.watch(self._channel.fileno(), self._read)

    def configure(self, network: Network, listener: socket.socket) -> None:
        """Make the relay use this network, and accept other relays at this bound socket."""
        try:
            send_message(self._channel, network.order, [listener.fileno()])
        except OSError:
            pass  # the relay has exited; `_read` reports that

    def _read(self) -> None:
        try:
            message, _ = receive_message(self._channel)
        except (EOFError, OSError):
            self._loop.forget(self._channel.fileno())
            self._channel.close()
            self._ended()
            return
        for task, source, reason, count in message["refused"]:
            self._refused(task, source, reason, count)


def _start(serve: Callable[[], None], channel: socket.socket, others: Sequence[int]) -> None:
    """Call a function in a fork that keeps only these descriptors and is killed when this process ends."""
    parent = os.getpid()
    if os.fork() != 0:
        return
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        linux.die_with_parent(signal.SIGKILL)
        linux.close_all_but([channel.fileno(), *others])
        if os.getppid() == parent:
            serve()
    except EOFError:
        pass  # the process at the other end has exited
    except BaseException as error:
        os.write(2, f"{error!r}\n".encode("utf-8", "replace"))
    finally:
        os._exit(0)
