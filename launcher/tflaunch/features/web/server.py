"""Serve the page on loopback until Ctrl-C, to the browser that used its link."""

import getpass
import hmac
import logging
import os
import secrets
import socket
from collections.abc import Callable
from pathlib import Path
from urllib.parse import parse_qs, quote

import uvicorn
from starlette.datastructures import Headers
from starlette.requests import cookie_parser
from starlette.responses import HTMLResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tflaunch.features.port_holder import LOOPBACK, listen_on_first
from tflaunch.features.web.app import make_app

USUAL_PORT = 7575
_BACKLOG = 128
_PATIENCE = 1  # seconds at the end for streams to close
TOKEN = "token"  # noqa: S105 (the name of a parameter)
_NAMES = frozenset(("localhost", "127.0.0.1", "[::1]"))
_SAFE = frozenset(("GET", "HEAD"))
_BYTES = 32
_MOST_SESSIONS = 64
_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self';"
        " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}
_REFUSAL = """<!doctype html><meta charset="utf-8"><meta name="color-scheme" content="light dark">\
<title>tflaunch</title><h1>tflaunch</h1><p>{}</p>"""
_NO_COOKIE = (
    "This page opens with the link that <code>tflaunch web</code> prints. Each link works once, for one browser, until"
    " that command ends."
)


def serve(say: Callable[[str], None], port: int | None, run: Path | None, *, is_beside: bool) -> None:
    """Serve the page until SIGINT or SIGTERM.

    Args:
        say: shows a message: the link, and after each use the next one.
        port: where to listen; None for the usual port if it is free, else any.
        run: the directory of the run that the link leads to; None for the list of all.
        is_beside: whether another command owns the terminal. It is told by stdout that the first link is shown, and no
            other one is.

    Raises:
        TflaunchError: the port is not free.
    """
    with listen_on_first((USUAL_PORT, 0) if port is None else (port,), _BACKLOG) as listener:
        chosen: int = listener.getsockname()[1]

        def link(token: str) -> str:
            # By address: `localhost` may lead to [::1], where another user can listen on this port and get the token.
            return f"http://{LOOPBACK}:{chosen}/?{TOKEN}={token}"

        def say_next(token: str) -> None:
            if not is_beside:
                say(f"for another browser: {link(token)}")

        access = Access(say_next)
        say(f"open {link(access.token)}" + ("" if is_beside else " (Ctrl-C stops it)"))
        if os.environ.get("SSH_CONNECTION"):
            say(f"on your own machine, first: {_tunnel(chosen)}")
        if is_beside:
            os.write(1, b"\n")
            os.close(1)
        app = Guarded(make_app(), access, chosen, "/" if run is None else f"/#/{run.name}")
        config = uvicorn.Config(
            app,
            http="h11",
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


class Access:
    """The token of the valid link, and the sessions of browsers that have used one."""

    def __init__(self, used: Callable[[str], None]) -> None:
        """Make the first link; each use of one calls ``used`` with the next one's token."""
        self.token = secrets.token_urlsafe(_BYTES)
        self._used = used
        self._sessions: list[str] = []

    def redeem(self, token: str) -> str | None:
        """Return a new session for the valid token, which it uses up; None for any other."""
        if not hmac.compare_digest(token.encode(), self.token.encode()):
            return None
        self.token = secrets.token_urlsafe(_BYTES)
        session = secrets.token_urlsafe(_BYTES)
        self._sessions = [*self._sessions, session][-_MOST_SESSIONS:]
        self._used(self.token)
        return session

    def is_known(self, session: str) -> bool:
        """Return whether a browser with this cookie has used a link."""
        return any(hmac.compare_digest(session.encode(), known.encode()) for known in self._sessions)


class Guarded:
    """ASGI middleware that checks every request by an `Access`, whatever its route."""

    def __init__(self, app: ASGIApp, access: Access, port: int, start: str = "/") -> None:
        """Guard an application; ``port`` tells its cookie from those of servers beside it."""
        self._app = app
        self._access = access
        self._start = start
        self._cookie = f"tflaunch-{port}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] += [(name.encode(), value.encode()) for name, value in _HEADERS.items()]
            await send(message)

        answer = self._refusal(scope) or self._redeemed(scope)
        await (answer or self._app)(scope, receive, send_with_headers)

    def _refusal(self, scope: Scope) -> Response | None:
        """Return a refusal of a request that cannot be the page's own; None for others."""
        headers = Headers(scope=scope)
        host, origin = headers.get("host", ""), headers.get("origin")
        if _name_of(host) not in _NAMES:
            return _refused("This address is not one of this machine's own names; open http://127.0.0.1 instead.")
        is_foreign = origin is not None and origin != f"http://{host}"
        is_foreign |= headers.get("sec-fetch-site", "none") not in ("same-origin", "none")
        is_link = headers.get("sec-fetch-mode") == "navigate" and origin is None  # in another page, to this one
        is_followed = is_link and scope["method"] == "GET" and scope["path"] == "/"
        if (is_foreign and not is_followed) or (scope["method"] not in _SAFE and origin is None):
            return _refused("Only the page itself can do this.")
        return None

    def _redeemed(self, scope: Scope) -> Response | None:
        """Return a cookie for a link's token, None for a browser with one, else a refusal."""
        token = parse_qs(scope["query_string"].decode("latin-1")).get(TOKEN)
        if token is not None and scope["path"] == "/" and scope["method"] == "GET":
            session = self._access.redeem(token[0])
            if session is not None:
                answer = self._onward()
                answer.set_cookie(self._cookie, session, httponly=True, samesite="strict")
                return answer
        cookies = cookie_parser(Headers(scope=scope).get("cookie", ""))
        if self._access.is_known(cookies.get(self._cookie, "")):
            return self._onward() if token is not None else None  # a link that this browser has used
        return _refused(_NO_COOKIE)

    def _onward(self) -> Response:
        """Return a page that loads the start page; a foreign redirect sends no cookie."""
        refresh = f'<meta http-equiv="refresh" content="0;url={quote(self._start, "/#")}">'
        return HTMLResponse(f'<!doctype html><link rel="icon" href="data:,">{refresh}')


def _name_of(host: str) -> str:
    """Return the name in a Host header, without the port: that of a tunnel may differ."""
    name, colon, port = host.rpartition(":")
    return name.lower() if colon and port.isdecimal() else host.lower()


def _refused(sentence: str) -> Response:
    return HTMLResponse(_REFUSAL.format(sentence), 403)
