"""Serve the page on this machine's loopback interface until Ctrl-C."""

from __future__ import annotations

import asyncio
import getpass
import logging
import os
import socket
from collections.abc import Callable
from pathlib import Path

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from tflaunch.features.port_holder import LOOPBACK, listen_on_first
from tflaunch.features.web.access import TOKEN, Access, Guarded
from tflaunch.features.web.app import make_app

USUAL_PORT = 7575
_BACKLOG = 128
_MOST_IDLE = 128  # with hundreds of pages, and a backlog that is accepted at once, below the usual limit of descriptors
_PATIENCE = 1  # seconds at the end for streams to close


class _Connection(H11Protocol):
    """A connection of any local user; those that only wait make room for others.

    None is closed for its age: a browser on a busy machine may connect long before it asks, and a page of which one
    part was lost stays empty.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Close the connection that has been idle for longest if too many are."""
        super().connection_made(transport)
        self.idle_since = self.loop.time()
        self._answered: object = None
        idle = [each for each in self.connections if isinstance(each, _Connection) and each.is_idle]
        if len(idle) > _MOST_IDLE:
            min(idle, key=lambda each: each.idle_since).transport.abort()

    def data_received(self, data: bytes) -> None:
        """Read the next part of a request."""
        if self.is_idle and self.cycle is not self._answered:  # the first part after an answer
            self._answered, self.idle_since = self.cycle, self.loop.time()
        super().data_received(data)

    @property
    def is_idle(self) -> bool:
        """Whether it has no request, or only a part of one."""
        return self.cycle is None or self.cycle.response_complete


def serve(
    say: Callable[[str], None],
    port: int | None = None,
    run: Path | None = None,
    listening: Callable[[], None] | None = None,
) -> None:
    """Serve the page until SIGINT or SIGTERM.

    Args:
        say: shows a message: the link, and after each use the next one.
        port: where to listen; None for the usual port if it is free, else any.
        run: the directory of the run that the link leads to; None for the list of all.
        listening: called after the first link was shown, if another command owns the terminal; no other one is shown.

    Raises:
        TflaunchError: the port is not free.
    """
    with listen_on_first((USUAL_PORT, 0) if port is None else (port,), _BACKLOG) as listener:
        chosen: int = listener.getsockname()[1]

        def link(token: str) -> str:
            # By address: `localhost` may lead to [::1], where another user can listen on this port and get the token.
            return f"http://{LOOPBACK}:{chosen}/?{TOKEN}={token}"

        def say_next(token: str) -> None:
            if listening is None:
                say(f"for another browser: {link(token)}")

        access = Access(say_next)
        say(f"open {link(access.token)}" + ("" if listening else " (Ctrl-C stops it)"))
        if os.environ.get("SSH_CONNECTION"):
            say(f"on your own machine, first: {_tunnel(chosen)}")
        if listening is not None:
            listening()
        app = Guarded(make_app(), access, chosen, "/" if run is None else f"/#/{run.name}")
        config = uvicorn.Config(
            app,
            http=_Connection,
            backlog=_BACKLOG,
            ws="none",
            loop="asyncio",
            log_config=None,
            log_level="critical",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=_PATIENCE,
        )
        logging.getLogger("asyncio").setLevel(logging.CRITICAL)  # it reports each connection that has no descriptor
        try:
            uvicorn.Server(config).run(sockets=[listener])
        except KeyboardInterrupt:
            pass  # Ctrl-C is how it ends


def _tunnel(port: int) -> str:
    """Return the ssh command for a tunnel from the machine the user logged in from."""
    address = os.environ["SSH_CONNECTION"].split()[2:4]  # of the sshd, as the client used them: host and port
    host, ssh_port = (*address, "22")[:2] if address else (socket.gethostname(), "22")
    extra = "" if ssh_port == "22" else f" -p {ssh_port}"
    try:
        host = f"{getpass.getuser()}@{host}"
    except (KeyError, OSError):  # a user without a name, and without a login; Python 3.13 raises OSError
        pass
    return f"ssh -N -L {port}:{LOOPBACK}:{port}{extra} {host}"
