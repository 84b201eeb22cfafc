"""Resolve SSH targets by the spec, then by the user's files (`config_lookup`).

`StrictHostKeyChecking` is ignored on purpose: host keys are always checked.
"""

from __future__ import annotations

import os
import re
import shlex
import socket
import threading
from collections.abc import Sequence
from typing import NamedTuple

from tflaunch.clusterspec.values import bracketed
from tflaunch.features.ssh.config_lookup import Lookup, Values, find_lookup, local_user, shown
from tflaunch.features.ssh.transport import KEYWORDS
from tflaunch.plan.model import HostPlan
from tflaunch.transport.base import LinkError

_DEFAULT_KEYS = ("id_ed25519", "id_ecdsa", "id_rsa")
_KNOWN_HOSTS = ("~/.ssh/known_hosts", "~/.ssh/known_hosts2")
_SYSTEM_KNOWN_HOSTS = ("/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2")
_DESTINATION = re.compile(
    r"(?:ssh://)?(?:(?P<user>.{1,255})@)?(?:\[(?P<v6>[^]]+)\]|(?P<name>[^]:@[]{1,255}))(?::(?P<port>[0-9]{1,9}))?/?"
)
_NUMBER = re.compile(r"[0-9]{1,5}")
_TOKEN = re.compile(r"%(.?)|\$\{(\w+)\}")
_LEAST_RSA_BITS = 1024  # the default of RequiredRSASize
_MAX_JUMPS = 16
_Destination = tuple[str, str | None, int | None]  # name, user, port


class Target(NamedTuple):
    """Where to connect, as which user, and how to authenticate both sides.

    Attributes:
        host: the name for messages: the host's in the spec, or a jump host's in ProxyJump.
        address: the name or address to connect to, as seen from the last jump host.
        identity_files: private keys in the order to try them.
        is_identity_required: whether the first of them is named in the spec, and therefore must be usable.
        identities_only: whether not to use the ssh-agent's other keys.
        agent: the ssh-agent's socket, None for no agent.
        known_hosts_files: the files to look host keys up in; ssh adds keys to the first.
        host_key_name: the name to look them up under: `address`, unless HostKeyAlias is set.
        jumps: the jump hosts in the order to connect to them, including the jump hosts of each.
        proxy_command: the command whose input and output are the connection, "" for none; not with jump hosts.
        connect_timeout: the timeout for the connection and the handshake, in seconds.
        algorithms: the user's Ciphers and the like (`transport.KEYWORDS`), by keyword.
        rsa_bits: the minimum size of an RSA host key, in bits.
        is_shared: whether `ssh` shares connections to it (ControlPath), which are of no use to us.
        command: the command to connect by hand, which asks whether to accept an unknown host key.
    """

    host: str
    address: str
    port: int
    user: str
    identity_files: tuple[str, ...] = ()
    is_identity_required: bool = False
    identities_only: bool = False
    agent: str | None = None
    known_hosts_files: tuple[str, ...] = ()
    host_key_name: str = ""
    jumps: tuple[Target, ...] = ()
    proxy_command: str = ""
    connect_timeout: float | None = None
    algorithms: tuple[tuple[str, str], ...] = ()
    rsa_bits: int = _LEAST_RSA_BITS
    is_shared: bool = False
    command: str = ""


class SshConfig:
    """The user's SSH configuration; one lookup per destination serves all threads."""

    def __init__(self, lookup: Lookup | None = None) -> None:
        """Prepare lookups, by default those of `find_lookup`, and raise as it does."""
        self._ask = lookup or find_lookup()
        self._lock = threading.Lock()
        self._locks: dict[_Destination, threading.Lock] = {}
        self._found: dict[_Destination, Values] = {}

    def resolve(self, host: HostPlan) -> Target:
        """Return how to reach a host.

        Its `ssh` is "user@address:port", where only the address is required. The address, or the host's name without
        `ssh`, is looked up like a destination on ssh's command line; the spec takes precedence over the result.

        Raises:
            LinkError: the configuration cannot be used for this host.
        """
        user, alias, port = _destination(host.ssh or bracketed(host.host), "`ssh`")
        return self._target(host.host, alias, user, port, identity_file=host.identity_file)

    def _target(
        self,
        host: str,
        alias: str,
        user: str | None,
        port: int | None,
        *,
        identity_file: str | None = None,
        jumps: tuple[Target, ...] | None = None,
        trail: tuple[str, ...] = (),
    ) -> Target:
        """Look a destination up; arguments take precedence over what is configured.

        ``host`` is the name for messages, ``identity_file`` the key named in the spec, ``jumps`` the route to it, and
        ``trail`` the destinations that led to this jump host, starting with the host in the spec.
        """
        options = _Options(alias, self._lookup(alias, user, port))
        is_direct = jumps is not None  # reached through jump hosts, so its own ProxyJump and ProxyCommand do not apply
        if jumps is None:
            jumps = self._jumps(options, (*trail, alias))
        return Target(
            host=host,
            address=options.address,
            port=options.port,
            user=options.user,
            identity_files=_identity_files(options, identity_file),
            is_identity_required=identity_file is not None,
            identities_only=options.is_on("identitiesonly"),
            agent=_agent(options),
            known_hosts_files=_known_hosts_files(options),
            host_key_name=options.get("hostkeyalias", options.address),
            jumps=jumps,
            proxy_command="" if is_direct else _proxy_command(options),
            connect_timeout=options.number("connecttimeout") or None,
            algorithms=tuple((keyword, options.get(keyword)) for keyword in KEYWORDS if options.get(keyword)),
            rsa_bits=max(options.number("requiredrsasize"), _LEAST_RSA_BITS),
            is_shared=options.get("controlpath", "none").lower() != "none",
            command=_command(options, jumps),
        )

    def _lookup(self, alias: str, user: str | None, port: int | None) -> Values:
        key = (alias, user, port)
        with self._lock:
            lock = self._locks.setdefault(key, threading.Lock())
        with lock:  # not of all: hosts are looked up in parallel
            if key not in self._found:
                self._found[key] = self._ask(alias, user, port)
            return self._found[key]

    def _jumps(self, options: _Options, trail: tuple[str, ...]) -> tuple[Target, ...]:
        value = options.get("proxyjump", "none")
        if value.lower() == "none":
            return ()
        if len(trail) > _MAX_JUMPS:
            raise LinkError(f"ProxyJump leads to {trail[0]} through more than {_MAX_JUMPS} jump hosts; shorten it")
        way: tuple[Target, ...] = ()
        for index, part in enumerate(options.expand(value).split(",")):
            user, alias, port = _destination(part.strip(), f"ProxyJump of {trail[-1]}:")
            if alias in trail:
                raise LinkError(
                    f"ProxyJump {alias} leads to {alias} again; "
                    f"keep it from applying to the jump host itself: `Host * !{alias}`"
                )
            # Only the first is reached by its own configuration; each other one through those before it.
            hop = self._target(alias, alias, user, port, jumps=way if index else None, trail=trail)
            way = (*hop.jumps, hop)
        return way


class _Options:
    """The options for one destination."""

    def __init__(self, alias: str, values: Values) -> None:
        self.alias = alias
        self.values = values
        self.address = self.get("hostname")
        self.user = self.get("user")
        self.port = self.number("port")
        if not 1 <= self.port <= 65535:
            raise LinkError(f"Port {shown(self.get('port'))} of {alias} is not a port; give a number from 1 to 65535")
        if self.get("revokedhostkeys", "none").lower() != "none":
            raise LinkError(
                f"tflaunch does not read the RevokedHostKeys of {alias}; list these keys as @revoked in known_hosts"
            )

    def get(self, key: str, default: str = "") -> str:
        found = self.values.get(key)
        return found[0] if found else default

    def is_on(self, key: str) -> bool:
        return self.get(key).lower() in ("yes", "true")

    def number(self, key: str) -> int:
        """Return a number, 0 without one."""
        text = self.get(key)
        return int(text) if _NUMBER.fullmatch(text) else 0

    def expand(self, text: str) -> str:
        """Expand ``%x`` and ``${VARIABLE}``, which `ssh -G` leaves in commands and paths."""
        here, key_name = socket.gethostname(), self.get("hostkeyalias", self.alias)
        there = {"h": self.address, "k": key_name, "n": self.alias, "p": str(self.port), "r": self.user}
        ours = {"d": os.path.expanduser("~"), "i": str(os.getuid()), "L": here.partition(".")[0], "l": here}
        tokens = {"%": "%", "u": local_user(), **there, **ours}

        def value(found: re.Match[str]) -> str:
            known = tokens.get(found[1]) if found[2] is None else os.environ.get(found[2])
            if known is None:
                raise LinkError(f"{found[0]} in {shown(text)} has no value in tflaunch; write it out")
            return known

        return _TOKEN.sub(value, text)

    def path(self, text: str) -> str:
        return self.expand(os.path.expanduser(text))


def _destination(text: str, what: str) -> tuple[str | None, str, int | None]:
    """Split "user@address:port" into user, address and port."""
    match = _DESTINATION.fullmatch(text)
    if match is None:
        raise LinkError(f'{what} {shown(text)} is not of the form "user@address:port"')
    port = int(match["port"]) if match["port"] else None
    if port is not None and not 1 <= port <= 65535:
        raise LinkError(f"{what} {shown(text)} has no port from 1 to 65535")
    return match["user"], match["v6"] or match["name"], port


def _identity_files(options: _Options, given: str | None) -> tuple[str, ...]:
    configured = options.values.get("identityfile", ())
    files = [os.path.expanduser(given)] if given is not None else []
    files += [options.path(name) for name in configured if name.lower() != "none"]
    if not files and not configured:
        usual = (os.path.expanduser(f"~/.ssh/{name}") for name in _DEFAULT_KEYS)
        files = [path for path in usual if os.path.exists(path)]
    return tuple(dict.fromkeys(files))


def _known_hosts_files(options: _Options) -> tuple[str, ...]:
    users, systems = (
        [options.path(name) for name in options.values.get(key, usual) if name and name.lower() != "none"]
        for key, usual in (("userknownhostsfile", _KNOWN_HOSTS), ("globalknownhostsfile", _SYSTEM_KNOWN_HOSTS))
    )
    return tuple(dict.fromkeys((*(users or [os.devnull]), *systems)))


def _agent(options: _Options) -> str | None:
    text = options.get("identityagent", "SSH_AUTH_SOCK")
    if text.lower() == "none":
        return None
    if text == "SSH_AUTH_SOCK" or text.startswith("$"):
        return os.environ.get(text.strip("${}")) or None
    return options.path(text)


def _proxy_command(options: _Options) -> str:
    command = options.get("proxycommand", "none")
    if command.lower() == "none":
        return ""
    if options.is_on("proxyusefdpass"):
        raise LinkError(
            f"tflaunch cannot use a ProxyCommand with ProxyUseFdpass; set ProxyUseFdpass to no for {options.alias}"
        )
    return options.expand(command)


def _command(options: _Options, jumps: Sequence[Target]) -> str:
    words = ["ssh"]
    if options.is_on("stricthostkeychecking"):
        words += ["-o", "StrictHostKeyChecking=ask"]
    if jumps:
        words += ["-J", ",".join(f"{jump.user}@{bracketed(jump.host)}:{jump.port}" for jump in jumps)]
    return shlex.join([*words, "-p", str(options.port), f"{options.user}@{options.alias}"])
