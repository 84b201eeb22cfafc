"""A proxy by which tasks in a private network reach the rest of the world.

It is a process of its own outside of the network, with a thread per connection: CONNECT, and requests with absolute
URLs. Proxies in the environment of the tasks are used for what they are set.

Standard library only, Python >= 3.8: this module runs on hosts.
"""

from __future__ import annotations

import base64
import os
import re
import signal
import socket
import threading
import urllib.request
from collections import namedtuple
from urllib.parse import unquote, urlsplit

from tflaunch_worker import linux

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Mapping, NoReturn

PROXIES = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY")
NO_PROXIES = ("no_proxy", "NO_PROXY")

_LONGEST_HEAD = 64 * 1024
_CONNECT_PATIENCE = 30.0  # seconds
_HEAD_PATIENCE = 60.0  # seconds
_CHUNK = 256 * 1024
_DEFAULT_PORTS = {"http": 80, "https": 443}
_METHOD = re.compile("[A-Za-z-]+")
_HOP_BY_HOP = (b"connection:", b"proxy-connection:", b"keep-alive:", b"proxy-authorization:")


def start_proxy(listener: socket.socket, environ: Mapping[str, str]) -> int:
    """Start the proxy in a fork, which ends with this process; return its pid.

    Args:
        listener: the socket on which it accepts connections.
        environ: environment with the proxies that lie between it and the rest of the world.
    """
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        _be_proxy(listener, environ, parent)
    return pid


def _be_proxy(listener: socket.socket, environ: Mapping[str, str], parent: int) -> NoReturn:
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        linux.die_with_parent(signal.SIGKILL)
        if os.getppid() == parent:
            linux.close_all_but([listener.fileno()])
            listener.setblocking(True)
            os.environ.clear()
            os.environ.update(environ)
            serve(listener)
    except BaseException as error:
        os.write(2, f"{error!r}\n".encode("utf-8", "replace"))
    finally:
        os._exit(code)


def serve(listener: socket.socket) -> NoReturn:
    """Serve connections until this process ends."""
    while True:
        client, _ = listener.accept()
        threading.Thread(target=_serve_client, args=(client,), daemon=True).start()


class Refused(Exception):
    """A request cannot be served; has the status of the answer."""


Request = namedtuple("Request", ["line", "fields", "scheme", "netloc", "host", "port", "first"])
"""A request to a proxy: its line and fields, where it leads, and what is sent there first (b"" for a tunnel)."""


def _serve_client(client: socket.socket) -> None:
    with client:
        try:
            head, rest = _receive_head(client)
            server, first = _open(parse_head(head))
        except Refused as refused:
            _answer(client, str(refused))
            return
        except (OSError, ValueError) as error:  # ValueError: a name that cannot be looked up
            _answer(client, f"502 {' '.join(str(error).split()) or type(error).__name__}"[:200])
            return
        with server:
            try:
                if first:
                    server.sendall(first)
                else:
                    _answer(client, "200 Connection established")
                server.sendall(rest)
            except OSError:
                return
            back = threading.Thread(target=_copy, args=(server, client), daemon=True)
            back.start()
            _copy(client, server)
            back.join()


def _receive_head(client: socket.socket) -> tuple[bytes, bytes]:
    """Return the head of a request with its empty line, and what has come after it."""
    client.settimeout(_HEAD_PATIENCE)
    data = b""
    while b"\r\n\r\n" not in data:
        if len(data) > _LONGEST_HEAD:
            raise Refused("431 Request header too large")
        more = client.recv(_CHUNK)
        if not more:
            raise Refused("400 Bad request")
        data += more
    client.settimeout(None)
    head, _, rest = data.partition(b"\r\n\r\n")
    return head + b"\r\n\r\n", rest


def parse_head(head: bytes) -> Request:
    """Return the request in a head that ends with an empty line.

    Raises:
        Refused: this is not a request to a proxy.
    """
    line, _, fields = head.partition(b"\r\n")
    method, _, target = line.decode("latin-1").rpartition(" ")[0].partition(" ")
    is_tunnel = method == "CONNECT"
    try:
        url = urlsplit(f"https://{target}" if is_tunnel else target)
        port = url.port or _DEFAULT_PORTS.get(url.scheme)
    except ValueError:
        raise Refused("400 Bad request") from None
    if not _METHOD.fullmatch(method) or " " in target or port is None or not url.hostname:
        raise Refused("400 Only requests to a proxy are served here")
    path = f"{url.path or '/'}{'?' if url.query else ''}{url.query}"
    first = b"" if is_tunnel else f"{method} {path} HTTP/1.1\r\n".encode("latin-1") + _for_one_request(fields)
    return Request(line, fields, url.scheme, url.netloc.rpartition("@")[2], url.hostname, port, first)


def _open(request: Request) -> tuple[socket.socket, bytes]:
    """Connect to where a request leads; return the connection, and what to send first.

    Raises:
        OSError: there is no way to it.
    """
    known = urllib.request.getproxies_environment()
    upstream = known.get(request.scheme) or known.get("all")
    if upstream and not urllib.request.proxy_bypass(request.netloc):
        return _open_upstream(upstream, request)
    return _connect(request.host, request.port), request.first


def _open_upstream(upstream: str, request: Request) -> tuple[socket.socket, bytes]:
    """Connect to a proxy of the user, which gets the request with its own name and password."""
    url = urlsplit(upstream if "://" in upstream else f"http://{upstream}")
    if not url.hostname:
        raise Refused("502 The proxy in the environment has no host")
    own = b""
    if url.username is not None:
        words = f"{unquote(url.username)}:{unquote(url.password or '')}".encode("utf-8")
        own = b"Proxy-Authorization: Basic " + base64.b64encode(words) + b"\r\n"
    kept = _for_one_request(request.fields) if request.first else request.fields
    return _connect(url.hostname, url.port or 80), request.line + b"\r\n" + own + kept


def _for_one_request(fields: bytes) -> bytes:
    """Return the fields of a request after which the connection ends, as the next may lead elsewhere."""
    lines = [line for line in fields.split(b"\r\n") if line and not line.lower().startswith(_HOP_BY_HOP)]
    return b"\r\n".join([*lines, b"Connection: close", b"", b""])


def _connect(host: str, port: int) -> socket.socket:
    server = socket.create_connection((host, port), _CONNECT_PATIENCE)
    server.settimeout(None)
    return server


def _answer(client: socket.socket, status: str) -> None:
    try:
        client.sendall(f"HTTP/1.1 {status}\r\n\r\n".encode("latin-1", "replace"))
    except OSError:
        pass  # it has gone


def _copy(source: socket.socket, target: socket.socket) -> None:
    """Copy what one connection receives to the other until its end, which is passed on."""
    try:
        while True:
            data = source.recv(_CHUNK)
            if not data:
                break
            target.sendall(data)
    except OSError:
        pass  # the connection was reset
    try:
        target.shutdown(socket.SHUT_WR)
    except OSError:
        pass  # it has ended, too
