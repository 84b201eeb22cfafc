"""Open TCP, tunnels and SSH handshakes with allowed algorithms and time limits.

Where this module replaces a part of paramiko, a comment there says why.
"""

from __future__ import annotations

import errno
import logging
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any, NamedTuple

import paramiko
from paramiko.packet import Packetizer

from tflaunch.clusterspec.values import bracketed
from tflaunch.features.ssh.proxy_command import ProxySocket, WakingSocket
from tflaunch.transport.base import LinkError
from tflaunch_worker.readable import duration_words, printable

# paramiko logs errors with their tracebacks, which Python prints without a handler.
logging.getLogger("paramiko").addHandler(logging.NullHandler())
logging.getLogger("paramiko").propagate = False

_DISCONNECT, _CHANNEL_OPEN, _CHANNEL_OPEN_FAILURE = 1, 90, 92  # SSH messages, RFC 4250
_PROHIBITED = 1  # a reason code of _CHANNEL_OPEN_FAILURE
_LONGEST_GREETING = 16 * 1024
_IDLE = 60.0  # seconds until a sleeping connection wakes up on its own; closing wakes it at once
JUST_NOW = 0.5
"""Seconds since the last data within which a connection counts as alive without asking."""

_MOST_SHOWN = 60
_ERRORS_PATIENCE = 2.0  # seconds for a ProxyCommand to exit once its connection is closed


class Limit(NamedTuple):
    """A timeout in seconds and the time at which it ends."""

    seconds: float
    end: float

    @classmethod
    def of(cls, seconds: float) -> Limit:
        """Return a timeout that starts now."""
        return cls(seconds, time.monotonic() + seconds)

    def at_most(self, seconds: float | None) -> Limit:
        """Return this timeout, or one of `seconds` from now if that ends sooner."""
        other = self if seconds is None else Limit.of(seconds)
        return other if other.end < self.end else self

    def left(self) -> float:
        """Return the seconds left, at least 0."""
        return max(self.end - time.monotonic(), 0.0)

    def __str__(self) -> str:
        return duration_words(self.seconds)


class Packets(Packetizer):
    """Packetizer that keeps greetings, disconnects and refusals for error messages."""

    def __init__(self, stream: Any) -> None:
        super().__init__(stream)
        self.greeting = bytearray()
        self.farewell = ""
        self.heard_at = 0.0  # of time.monotonic()
        self._opening = threading.local()
        self._refusals: dict[int, tuple[int, str]] = {}

    def start_handshake(self, timeout: float) -> None:
        """Start no timer: paramiko's takes a thread, and `shake_hands` has its own limit."""

    def readline(self, timeout: float) -> str:
        """Read and keep a line that arrives before the first packet.

        paramiko reads at most 100 such lines, each of any length, and reports none of them.
        """
        line = b""
        while not line.endswith(b"\n"):
            if len(self.greeting) == _LONGEST_GREETING:
                raise paramiko.SSHException("the peer does not speak SSH")
            line += self.read_all(1)
            self.greeting += line[-1:]
        return line.rstrip(b"\r\n").decode(errors="replace")

    def read_message(self) -> tuple[int, paramiko.Message]:
        """Read a packet; keep the server's reason for a disconnect or a refused channel.

        paramiko drops the reason of a disconnect, and keeps only one refusal for all waiting threads.
        """
        kind, message = super().read_message()
        self.heard_at = time.monotonic()
        if kind in (_DISCONNECT, _CHANNEL_OPEN_FAILURE):
            copy = paramiko.Message(message.asbytes())
            channel = copy.get_int() if kind == _CHANNEL_OPEN_FAILURE else None
            reason, words = copy.get_int(), _shown(copy.get_binary())
            if channel is None:
                self.farewell = words
            else:
                self._refusals[channel] = (reason, words)
        return kind, message

    def send_message(self, data: paramiko.Message) -> None:
        """Send a packet; note a channel that it opens for `refusal` in this thread."""
        raw = data.asbytes()
        if raw[0] == _CHANNEL_OPEN:
            message = paramiko.Message(raw[1:])
            message.get_binary()
            self._opening.channel = message.get_int()
        super().send_message(data)

    def refusal(self) -> tuple[int, str] | None:
        """Return code and text if this thread's last channel was refused, else None."""
        return self._refusals.pop(self._opening.__dict__.pop("channel", -1), None)


class Transport(paramiko.Transport):
    """An SSH connection."""

    def __init__(
        self, stream: socket.socket | paramiko.Channel, key_types: Sequence[str], algorithms: Mapping[str, str]
    ) -> None:
        """Prepare with the user's lists of algorithms; raises as `allowed_algorithms`."""
        super().__init__(stream, packetizer_class=Packets)
        # After paramiko's constructor, which sets 0.1 s: each idle connection would wake up ten times a second.
        stream.settimeout(_IDLE)
        self._key_types = frozenset(key_types)
        options = self.get_security_options()
        options.ciphers = allowed_algorithms("ciphers", algorithms.get("ciphers", ""), options.ciphers)
        options.digests = allowed_algorithms("macs", algorithms.get("macs", ""), options.digests)
        options.kex = allowed_algorithms("kexalgorithms", algorithms.get("kexalgorithms", ""), options.kex)
        self._host_keys = allowed_algorithms(
            "hostkeyalgorithms", algorithms.get("hostkeyalgorithms", ""), super().preferred_keys
        )

    def run(self) -> None:
        """Serve the connection to its end, then close its descriptor (see `WakingSocket`)."""
        try:
            super().run()
        finally:
            _release(self.sock)

    def is_answering(self, patience: float) -> bool:
        """Return whether the server sent data within 0.5 s, or answers in ``patience`` s."""
        if time.monotonic() - self.packets.heard_at < JUST_NOW:
            return True
        try:
            # A server must refuse a channel of an unknown type. paramiko's own requests have no timeout.
            self.open_channel("ping@tflaunch", timeout=patience).close()
        except (paramiko.SSHException, EOFError, OSError):
            return self.packets.refusal() is not None
        return True

    @property
    def packets(self) -> Packets:
        """The packet reader, with what the server has sent."""
        assert isinstance(self.packetizer, Packets)
        return self.packetizer

    @property
    def preferred_keys(self) -> Sequence[str]:
        """Host key algorithms, those in known_hosts first, which paramiko's order ignores."""
        return tuple(sorted(self._host_keys, key=lambda name: name not in self._key_types))


def _release(stream: socket.socket | paramiko.Channel) -> None:
    stream.close()
    if isinstance(stream, WakingSocket):
        stream.release()


def dial(address: str, port: int, limit: Limit) -> socket.socket:
    """Connect to the first address of a name that accepts, or raise `LinkError`."""
    found = _resolve(address, port, limit)
    problem = OSError("it has no address")
    for index, (family, kind, protocol, _, place) in enumerate(found):
        stream = WakingSocket(family, kind, protocol)
        try:
            # Split the time left: an address that drops packets must not use up the time of the next one.
            stream.settimeout(limit.left() / (len(found) - index) + 0.001)
            stream.connect(place)
            stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as error:
            stream.release()
            problem = error
        else:
            return stream
    raise LinkError(_unreachable(problem, spot(address, port), limit))


def tunnel(jump: Transport, address: str, port: int, limit: Limit) -> paramiko.Channel:
    """Open a TCP connection through a jump host, or raise `LinkError`."""
    there = spot(address, port)
    try:
        return jump.open_channel("direct-tcpip", (address, port), ("127.0.0.1", 0), timeout=limit.left())
    except (paramiko.SSHException, EOFError, OSError) as error:
        refusal = jump.packets.refusal()
        if refusal is None:
            if not isinstance(error, paramiko.SSHException):
                jump.close()  # a failed send shows a lost connection earlier than its own thread notices it
            if jump.is_active():
                raise LinkError(_unreachable(TimeoutError(), there, limit)) from None
            raise LinkError(f"the connection broke on the way to {there}: {error or 'end of stream'}") from None
    reason, words = refusal
    if reason == _PROHIBITED:
        raise LinkError(
            f"it does not connect us to {there} ({words}); allow it there: AllowTcpForwarding in sshd_config"
        )
    raise LinkError(f"it cannot connect to {there} ({words}); is sshd running there, and is that its port?")


def shake_hands(
    stream: socket.socket | paramiko.Channel,
    there: str,
    key_types: Sequence[str],
    limit: Limit,
    algorithms: Mapping[str, str] | None = None,
) -> Transport:
    """Return an encrypted connection to a server, its host key not yet checked.

    ``stream`` is closed if this fails; ``there`` is its destination, for messages. The others are as in `Transport`.

    Raises:
        LinkError: no SSH server answers, or the configuration leaves no usable algorithm.
    """
    try:
        transport = Transport(stream, key_types, algorithms or {})
    except LinkError:
        _release(stream)
        raise
    done = threading.Event()
    try:
        transport.start_client(done)
    except RuntimeError as error:  # no more threads
        _release(stream)
        raise LinkError(f"the connection to {there} cannot be served: {error}") from None
    is_late = not done.wait(limit.left())
    if transport.is_active() and not is_late:
        return transport
    problem = transport.get_exception()
    transport.close()
    late = str(limit) if is_late else ""
    if isinstance(stream, ProxySocket) and not transport.packets.greeting:
        raise LinkError(_proxy_failure(stream, there, late))
    raise LinkError(_failure(transport, problem, there, late))


def spot(address: str, port: int) -> str:
    """Format address and port."""
    return f"{bracketed(address)}:{port}"


def _resolve(address: str, port: int, limit: Limit) -> list[Any]:
    """Return a name's addresses within a limit, which the system's resolver lacks."""
    answer: Future[list[Any]] = Future()

    def ask() -> None:
        try:
            answer.set_result(socket.getaddrinfo(address, port, type=socket.SOCK_STREAM))
        except (OSError, UnicodeError) as error:
            answer.set_exception(error)

    try:
        threading.Thread(target=ask, name="resolve", daemon=True).start()
    except RuntimeError:  # no more threads
        ask()
    remedy = "correct `ssh` in the spec, or HostName in ~/.ssh/config"
    try:
        return answer.result(limit.left())
    except FutureTimeout:
        raise LinkError(f"the name {address} does not resolve within {limit}; {remedy}") from None
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or "it is malformed"
        raise LinkError(f"the name {address} does not resolve ({reason}); {remedy}") from None


def _unreachable(error: OSError, there: str, limit: Limit) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer from {there} within {limit}; is it running, and does a firewall let you through?"
    if error.errno == errno.ECONNREFUSED:
        return f"{there} refuses connections; is sshd running there, and is that its port?"
    if error.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH):
        return f"there is no route to {there}; is it running, and is its network yours?"
    return f"{there} cannot be reached: {error.strerror or error}"


def _failure(transport: Transport, problem: Exception | None, there: str, late: str) -> str:
    """Describe a failed handshake; ``late`` is the timeout that expired, or ""."""
    packets = transport.packets
    if not transport.remote_version:
        if said := _shown(bytes(packets.greeting).strip()):
            return f'{there} does not speak SSH but says "{said}"; is that the port of sshd?'
        if late:
            return f"{there} accepts the connection but says nothing within {late}; is that the port of sshd?"
        return (
            f"{there} hangs up before it says anything; its sshd may not let this machine in, "
            "or have too many new connections (MaxStartups)"
        )
    if isinstance(problem, paramiko.ssh_exception.IncompatiblePeer):
        detail = str(problem).partition("(")[2].rstrip(")") or str(problem)
        version = _shown(transport.remote_version.encode())
        return f"{there} ({version}) is too old or too strict for tflaunch: {detail}; see its sshd_config"
    if late:
        return f"{there} does not finish the handshake within {late}; is it overloaded?"
    if packets.farewell:
        return f'{there} ends the handshake: "{packets.farewell}"'
    if problem is None or isinstance(problem, (EOFError, OSError)):
        return f"{there} hangs up during the handshake; its sshd may have too many new connections (MaxStartups)"
    return f"the handshake with {there} failed: {_shown(str(problem).encode())}"


def _proxy_failure(stream: ProxySocket, there: str, late: str) -> str:
    """Describe a failed ProxyCommand; ``late`` is the timeout that expired, or ""."""
    said = _shown(stream.last_words(_ERRORS_PATIENCE), 3 * _MOST_SHOWN)
    quoted = f' and says "{said}"' if said else ""
    what = f"brings no answer within {late}" if late else "ends before SSH begins"
    return f"the ProxyCommand to {there} {what}{quoted}; does it work by hand?"


def _shown(raw: bytes, most: int = _MOST_SHOWN) -> str:
    """Return the first line of an untrusted text, made safe for a terminal."""
    return printable(raw.partition(b"\n")[0].strip().decode(errors="replace"), most)


KEYWORDS = {name.lower(): name for name in ("Ciphers", "MACs", "KexAlgorithms", "HostKeyAlgorithms")}
"""The keywords of ssh_config that choose algorithms, by their names in lower case."""

_DEFAULTS: Mapping[str, Sequence[str]] = {
    "ciphers": (
        "chacha20-poly1305@openssh.com",
        *("aes128-gcm@openssh.com", "aes256-gcm@openssh.com"),
        *("aes128-ctr", "aes192-ctr", "aes256-ctr"),
    ),
    "macs": (
        *("hmac-sha2-256-etm@openssh.com", "hmac-sha2-512-etm@openssh.com"),
        *("hmac-sha2-256", "hmac-sha2-512", "hmac-sha1"),
    ),
}
"""Our choice from paramiko's; it has no weak key exchange and host key (from version 5 on)."""


def allowed_algorithms(keyword: str, wish: str, supported: Sequence[str]) -> tuple[str, ...]:
    """Return the algorithms to offer, in order of preference.

    ``keyword`` is one of `KEYWORDS`, and ``wish`` the user's comma-separated list, "" for our defaults.

    Raises:
        LinkError: paramiko supports none of them.
    """
    names = wish.split(",") if wish else _DEFAULTS.get(keyword, supported)
    chosen = tuple(name for name in dict.fromkeys(names) if name in supported)
    if not chosen:
        raise LinkError(
            f"{KEYWORDS[keyword]} {wish[:80]!r} in ssh_config leaves nothing that tflaunch can use; "
            f"add one of {', '.join(supported)}"
        )
    return chosen
