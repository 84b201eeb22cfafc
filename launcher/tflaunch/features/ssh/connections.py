"""Connect over SSH, also by jump hosts or ProxyCommand; check host keys; log in."""

import os
import socket
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout

import paramiko

from tflaunch.explain.wording import listed
from tflaunch.features.ssh.config_lookup import DEFAULT_PORT
from tflaunch.features.ssh.known_hosts import KnownHosts
from tflaunch.features.ssh.proxy_command import ProxySocket
from tflaunch.features.ssh.ssh_config import Target
from tflaunch.features.ssh.transport import Limit, Transport, dial, shake_hands, spot, tunnel
from tflaunch.features.ssh.user_keys import AgentKey, Keys, Offer
from tflaunch.transport.base import LinkError

_LOOK = 1.0  # seconds between checks whether a connection is alive
_ANSWER_PATIENCE = 3.0  # seconds for a jump host that is already connected to answer


class Connector:
    """Connector for many threads, which share keys, known hosts, and jump hosts."""

    def __init__(self) -> None:
        self.keys = Keys()
        self._lock = threading.Lock()
        self._known: dict[tuple[object, ...], KnownHosts] = {}
        self._jumps: dict[tuple[object, ...], Future[Transport]] = {}

    def connect(self, target: Target, limit: Limit) -> Transport:
        """Return a connection, host key checked and user logged in; jump hosts stay open.

        Raises:
            LinkError: with the cause and the remedy, but not the host's name.
        """
        offers, problems = self.keys.offers(target, limit.left())
        if not offers:
            reason = "; ".join(problems) or "neither a key file nor an ssh-agent with keys was found"
            remedy = "add one to the ssh-agent with ssh-add, or name its file as identity_file in the spec"
            raise LinkError(f"there is no key to log in with: {reason}; {remedy}{_no_sharing(target)}")
        known = self._known_hosts(target.known_hosts_files)
        # In known_hosts an alias has no port, an address has one.
        port = target.port if target.host_key_name == target.address else DEFAULT_PORT
        there = spot(target.address, target.port)
        if target.jumps:
            last = target.jumps[-1]
            there = f"{there} behind jump host {last.host}"
            jump = self._jump(last, limit)
        near = limit.at_most(target.connect_timeout)
        stream: socket.socket | paramiko.Channel
        if target.jumps:
            try:
                stream = _through(jump, target, near)
            except _JumpHostError:
                if jump.is_active():
                    raise
                # The connection to the jump host had just ended, before its own thread knew it.
                stream = _through(self._jump(last, limit), target, near)
        elif target.proxy_command:
            stream = ProxySocket(target.proxy_command)
        else:
            stream = dial(target.address, target.port, near)
        transport = shake_hands(
            stream, there, known.key_types(target.host_key_name, port), near, dict(target.algorithms)
        )
        try:
            assert transport.host_key is not None
            known.check(target.host_key_name, port, transport.host_key, target.command, target.rsa_bits)
            _Login(transport, target, there, limit).log_in(offers, problems)
        except BaseException:
            transport.close()
            raise
        return transport

    def _known_hosts(self, files: Sequence[str]) -> KnownHosts:
        """Return the current contents of files: the user may add a key while we run."""
        state = tuple((path, *_state(path)) for path in files)
        with self._lock:
            if state not in self._known:
                self._known[state] = KnownHosts(files)
            return self._known[state]

    def _jump(self, target: Target, limit: Limit) -> Transport:
        """Return the connection to a jump host, opened by the first thread that needs it."""
        way = tuple((hop.address, hop.port, hop.user, hop.proxy_command) for hop in (*target.jumps, target))
        self._retire(way, min(_ANSWER_PATIENCE, limit.left() / 3))
        with self._lock:
            jump = self._jumps.get(way)
            is_ours = jump is None or (jump.done() and not _is_alive(jump))
            if jump is None or is_ours:
                jump = self._jumps[way] = Future()
        if is_ours:  # the other threads wait for what comes of it, without the lock
            try:
                jump.set_result(self.connect(target, limit))
            except BaseException as error:
                jump.set_exception(error)
                if not isinstance(error, LinkError):
                    raise
        try:
            return jump.result(limit.left())
        except _JumpHostError as error:
            raise _JumpHostError(str(error)) from None  # threads must not share an exception
        except LinkError as error:
            raise _JumpHostError(f"jump host {target.host}: {error}") from None
        except FutureTimeout:
            raise _JumpHostError(f"jump host {target.host}: there is no connection within {limit}") from None

    def _retire(self, way: tuple[object, ...], patience: float) -> None:
        """Stop using a jump host's connection without an answer, as after a cable cut."""
        jump = self._jumps.get(way)
        if jump is None or not _is_alive(jump) or jump.result().is_answering(patience):  # no limit: it is done
            return
        with self._lock:
            if self._jumps.get(way) is jump:
                del self._jumps[way]  # it stays open: if it is only slow, other hosts still need it


class _JumpHostError(LinkError):
    """An error that already names its jump host."""


class _Login:
    """Tries one key after the other."""

    def __init__(self, transport: Transport, target: Target, there: str, limit: Limit) -> None:
        self._transport = transport
        self._user = target.user
        self._hint = _no_sharing(target)
        self._there = there
        self._limit = limit

    def log_in(self, offers: Sequence[Offer], problems: Sequence[str]) -> None:
        """Log in with the first accepted key; ``problems`` say why others are not tried."""
        tried: list[str] = []
        verdict: Exception | None = None
        for offer in offers:
            tried.append(offer.name)
            self._try(offer, tried)
            if self._transport.is_authenticated():
                return
            if isinstance(offer.key, AgentKey) and offer.key.is_refused:
                tried[-1] += " (which the ssh-agent does not use)"
            verdict = self._transport.get_exception() or verdict
        raise LinkError(self._refusal(verdict, tried, problems) + self._hint)

    def _try(self, offer: Offer, tried: Sequence[str]) -> None:
        done = threading.Event()
        try:
            self._transport.auth_publickey(self._user, offer.key, done)
        except (paramiko.SSHException, EOFError, OSError):
            pass  # the connection is broken
        while self._transport.is_active() and self._limit.left() and not done.wait(min(_LOOK, self._limit.left())):
            pass
        if not self._transport.is_active():
            raise LinkError(self._breakdown(tried))
        if not done.is_set():
            who = "the ssh-agent (does it ask you for something?) or " if isinstance(offer.key, AgentKey) else ""
            raise LinkError(f"the login with {offer.name} takes {who}{self._there} longer than {self._limit}")

    def _breakdown(self, tried: Sequence[str]) -> str:
        said = self._transport.packets.farewell
        if "too many auth" in said.lower():
            return (
                f"{self._there} hangs up as too many keys are wrong for user {self._user}: {listed(tried)}; name the "
                "right one as identity_file in the spec, or with `IdentitiesOnly yes` in ~/.ssh/config"
            )
        problem = self._transport.get_exception()
        reason = said or (str(problem) if isinstance(problem, paramiko.SSHException) else "")
        return f"{self._there} hangs up during the login of user {self._user}{reason and f': {reason}'}"

    def _refusal(self, verdict: Exception | None, tried: Sequence[str], problems: Sequence[str]) -> str:
        if isinstance(verdict, paramiko.ssh_exception.PartialAuthentication):
            more = ", ".join(verdict.allowed_types)
            return f"{self._there} accepts a key of user {self._user}, but wants {more} too; let keys be enough there"
        if isinstance(verdict, paramiko.BadAuthenticationType):
            types = ", ".join(verdict.allowed_types)
            return f"{self._there} takes no keys from user {self._user}, only {types}; allow PubkeyAuthentication there"
        unused = f" (not tried: {'; '.join(problems)})" if problems else ""
        return (
            f"{self._there} does not let user {self._user} in with {listed(tried)}{unused}; add the public key to "
            "~/.ssh/authorized_keys there, or name another user or identity_file"
        )


def _no_sharing(target: Target) -> str:
    """Return the end of a failure to log in where `ssh` might need no login."""
    return "; a connection that ssh shares (ControlPath) is not used" if target.is_shared else ""


def _through(jump: Transport, target: Target, limit: Limit) -> paramiko.Channel:
    try:
        return tunnel(jump, target.address, target.port, limit)
    except LinkError as error:
        raise _JumpHostError(f"jump host {target.jumps[-1].host}: {error}") from None


def _is_alive(jump: Future[Transport]) -> bool:
    return jump.done() and jump.exception() is None and jump.result().is_active()  # no limit: it is done


def _state(path: str) -> tuple[int, int]:
    try:
        found = os.stat(path)
    except OSError:
        return 0, 0
    return found.st_mtime_ns, found.st_size
