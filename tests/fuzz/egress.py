"""Requests of tasks to the proxy of their private network: one that leads somewhere, or a status."""

from __future__ import annotations

import random
import re

from fuzz import mutations
from fuzz.borders import Border
from tflaunch_worker.agent import egress

_METHODS = ("GET", "CONNECT", "CONNECT", "POST", "M-SEARCH", "get", "", "GE\nT", "G T", "\x00")
_TARGETS = (
    *("http://far.invalid/a?b=c", "http://far.invalid", "far.invalid:443", "[::1]:443", "http://[::1]:80/", "http://["),
    *("http://ann:key@far:1/", "far", ":80", "far:", "far:0", "far:65536", "far:-1", "file:///etc/passwd", "*", "/"),
    *("https://far/\x1b[2J", "http://far\r/", "http://far\n/x", "http://\u212a/", "HTTP://FAR/", "ftp://far/"),
)
_FIELDS = (
    *("Host: far", "Connection: keep-alive", "proxy-connection: x", "Proxy-Authorization: Basic x", "A:", ":", "no"),
    *("Content-Length: 5", " folded", "X: \xff", "Keep-Alive:"),
)
_NOT_PASSED_ON = (b"connection:", b"proxy-connection:", b"proxy-authorization:", b"keep-alive:")
_STATUS = re.compile(r"[1-5][0-9][0-9] [ -~]+")


def generate(chance: random.Random) -> bytes:
    """Return the head of a request."""
    target = chance.choice((*_TARGETS, f"http://{chance.choice(mutations.TEXTS)}/{chance.choice(mutations.TEXTS)}"))
    version = chance.choice(("HTTP/1.1", "HTTP/1.0", "", "HTTP/1.1 x"))
    line = chance.choice((" ", " ", " ", "  ", "")).join((chance.choice(_METHODS), target, version))
    fields = [chance.choice(_FIELDS) for _ in range(chance.randrange(6))]
    text = "\r\n".join([line, *fields, "", ""])
    head = bytearray(text.encode("utf-8", "surrogatepass"))
    for _ in range(chance.choice((0, 0, 1, 5))):
        head[chance.randrange(len(head))] = chance.randrange(256)
    return bytes(head)


def check(case: bytes) -> None:
    """Raise AssertionError unless a head leads to one server, which gets one request, or is refused."""
    head = case.partition(b"\r\n\r\n")[0] + b"\r\n\r\n"
    try:
        request = egress.parse_head(head)
    except egress.Refused as refused:
        status = str(refused)
        request = None
    if request is None:
        assert _STATUS.fullmatch(status), status
        return
    assert request.host
    assert 0 < request.port < 1 << 16
    if not head.startswith(b"CONNECT "):
        assert request.first.count(b"\r\n\r\n") == 1
        assert request.first.endswith(b"\r\nConnection: close\r\n\r\n")
        line, *fields = request.first.split(b"\r\n")[:-3]
        assert re.fullmatch(rb"[A-Za-z-]+ [^ \r\n]+ HTTP/1.1", line), line
        assert not any(field.lower().startswith(_NOT_PASSED_ON) for field in fields)


BORDER = Border(generate, check)
