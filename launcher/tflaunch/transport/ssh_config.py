"""How a host is reached over SSH: what the spec says of it, then what ssh's own configuration says.

That is ~/.ssh/config, then /etc/ssh/ssh_config. `StrictHostKeyChecking` is deliberately not obeyed, as host
keys are always checked, and a `ProxyCommand` is an error.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tflaunch.spec import Host
from tflaunch.transport.base import LinkError
from tflaunch.transport.ssh_algorithms import KEYWORDS
from tflaunch.transport.ssh_options import PROXIES, Options, parse, shown

_SYSTEM_CONFIG = "/etc/ssh/ssh_config"
_DEFAULT_KEYS = ("id_ed25519", "id_ecdsa", "id_rsa")
_KNOWN_HOSTS = "~/.ssh/known_hosts ~/.ssh/known_hosts2"
_SYSTEM_KNOWN_HOSTS = "/etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2"
_DESTINATION = re.compile(
    r"(?:ssh://)?(?:(?P<user>.{1,255})@)?(?:\[(?P<v6>[^]]+)\]|(?P<name>[^]:@[]{1,255}))(?::(?P<port>[0-9]{1,9}))?/?"
)
_DURATION = re.compile(r"(\d+)([smhdw]?)", re.IGNORECASE)
_MOST_JUMPS = 16
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


class Target(NamedTuple):
    """Where to connect, as whom, and what proves who is there.

    Attributes:
        host: the name for messages: the host's in the spec, a jump host's in ProxyJump.
        address: a name or an address to connect to, seen from the last of the jump hosts.
        port: the port of its sshd.
        user: the name to log in with.
        identity_files: private keys in the order in which they are tried.
        is_identity_required: whether the first of them is named in the spec, and therefore has to be usable.
        identities_only: whether the ssh-agent's other keys are left alone.
        agent: the ssh-agent's socket, None for no agent.
        known_hosts_files: where host keys are looked up.
        host_key_name: under which name; `address`, unless HostKeyAlias says otherwise.
        jumps: the jump hosts on the way, the first that is connected to first; their own ways are parts of it.
        connect_timeout: the limit for the connection and the handshake in seconds.
        algorithms: what the configuration says of Ciphers and the like (`ssh_algorithms.KEYWORDS`), by keyword.
        command: connects by hand, asking whether an unknown host key is right.
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
    connect_timeout: float | None = None
    algorithms: tuple[tuple[str, str], ...] = ()
    command: str = ""


class SshConfig:
    """The configuration of ssh on this machine. Its files are read once."""

    def __init__(self, user_file: Path | None = None, system_file: Path | None = None) -> None:
        """Read the files; one that does not exist is empty.

        Args:
            user_file: by default ~/.ssh/config; what it includes is relative to ~/.ssh.
            system_file: by default /etc/ssh/ssh_config; what it includes is relative to its directory.

        Raises:
            LinkError: a file cannot be read or is malformed.
        """
        own = Path("~/.ssh").expanduser()
        system = system_file or Path(_SYSTEM_CONFIG)
        # The user's options stand first, as the first value wins.
        self._files = (
            parse(user_file or own / "config", own, is_users=user_file is None),
            parse(system, system.parent),
        )

    def resolve(self, host: str, settings: Host) -> Target:
        """Return how to reach a host.

        Args:
            host: its name in the spec.
            settings: `ssh` is "user@address:port", where only the address is needed. The address, or the
                host's name if there is no `ssh`, is looked up like a destination on ssh's command line; what
                stands in the spec goes before what is found.

        Raises:
            LinkError: the configuration is of no use for this host.
        """
        user, alias, port = _destination(settings.ssh or host, "`ssh`")
        return self._target(host, alias, user, port, identity_file=settings.identity_file)

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
        """Look a destination up.

        Args:
            host: the name for messages.
            alias: what is looked up.
            user: goes before the configuration's.
            port: likewise.
            identity_file: likewise.
            jumps: the way to it, None for the configuration's.
            trail: whose jump host it is, up to the host in the spec.
        """
        options = Options(alias, user, port)
        options.read(self._files)
        tokens = options.tokens()
        address, login, number = tokens["h"], tokens["r"], options.port()
        if jumps is None:
            jumps = self._jumps(options, (*trail, alias))
        return Target(
            host=host,
            address=address,
            port=number,
            user=login,
            identity_files=_identity_files(options, identity_file),
            is_identity_required=identity_file is not None,
            identities_only=options.is_on("identitiesonly"),
            agent=_agent(options),
            known_hosts_files=_known_hosts_files(options),
            host_key_name=options.get("hostkeyalias", address),
            jumps=jumps,
            connect_timeout=_connect_timeout(options),
            algorithms=tuple((keyword, options.get(keyword)) for keyword in KEYWORDS if keyword in options.values),
            command=_command(alias, login, number, jumps, is_strict=options.is_on("stricthostkeychecking")),
        )

    def _jumps(self, options: Options, trail: tuple[str, ...]) -> tuple[Target, ...]:
        """Return the jump hosts on the way to the last in the trail."""
        # The first of the two counts, except that a ProxyJump of none says nothing of ProxyCommand.
        said = [key for key in options.values if key in PROXIES]
        if said and (said[0], options.get(said[0]).lower()) == ("proxyjump", "none"):
            said.pop(0)
        key = said[0] if said else ""
        value = options.get(key, "none")
        if value.lower() == "none":
            return ()
        place = options.places[key]
        if key == "proxycommand":
            raise LinkError(f"{place}: tflaunch does not run a ProxyCommand; use ProxyJump for {trail[-1]}")
        if len(trail) > _MOST_JUMPS:
            raise LinkError(
                f"{place}: ProxyJump leads to {trail[0]} through more than {_MOST_JUMPS} jump hosts; shorten it"
            )
        way: tuple[Target, ...] = ()
        for index, part in enumerate(options.expanded(value, key).split(",")):
            user, alias, port = _destination(part.strip(), f"{place}: ProxyJump")
            if alias in trail:
                raise LinkError(
                    f"{place}: ProxyJump {alias} leads to {alias} again; "
                    f"keep it from applying to the jump host itself: `Host * !{alias}`"
                )
            # Only the first is reached as its own configuration says; the others are reached through those before.
            hop = self._target(alias, alias, user, port, jumps=way if index else None, trail=trail)
            way = (*hop.jumps, hop)
        return way


def _destination(text: str, what: str) -> tuple[str | None, str, int | None]:
    """Split "user@address:port" into user, address and port."""
    match = _DESTINATION.fullmatch(text)
    if match is None:
        raise LinkError(f'{what} {shown(text)} is not of the form "user@address:port"')
    port = int(match["port"]) if match["port"] else None
    if port is not None and not 1 <= port <= 65535:
        raise LinkError(f"{what} {shown(text)} has no port from 1 to 65535")
    return match["user"], match["v6"] or match["name"], port


def _identity_files(options: Options, given: str | None) -> tuple[str, ...]:
    configured = options.values.get("identityfile", [])
    files = [os.path.expanduser(given)] if given is not None else []
    files += [options.path(name, "identityfile") for name in configured if name.lower() != "none"]
    if not files and not configured:
        usual = (os.path.expanduser(f"~/.ssh/{name}") for name in _DEFAULT_KEYS)
        files = [path for path in usual if os.path.exists(path)]
    return tuple(dict.fromkeys(files))


def _known_hosts_files(options: Options) -> tuple[str, ...]:
    found: list[str] = []
    for key, usual in (("userknownhostsfile", _KNOWN_HOSTS), ("globalknownhostsfile", _SYSTEM_KNOWN_HOSTS)):
        names = options.values.get(key, usual.split())
        found += [options.path(name, key) for name in names if name.lower() != "none"]
    return tuple(dict.fromkeys(found))


def _agent(options: Options) -> str | None:
    text = options.get("identityagent", "SSH_AUTH_SOCK")
    if text.lower() == "none":
        return None
    if text == "SSH_AUTH_SOCK" or text.startswith("$"):
        return os.environ.get(text.strip("${}")) or None
    return options.path(text, "identityagent")


def _connect_timeout(options: Options) -> float | None:
    text = options.get("connecttimeout", "none")
    if text.lower() == "none":
        return None
    parts = _DURATION.findall(text)
    if "".join(number + unit for number, unit in parts) != text:
        raise LinkError(f"{options.places['connecttimeout']}: {shown(text)} is not a time; give a number of seconds")
    return sum(float(number) * _SECONDS[unit.lower()] for number, unit in parts) or None


def _command(alias: str, user: str, port: int, jumps: Sequence[Target], *, is_strict: bool) -> str:
    words = ["ssh"]
    if is_strict:
        words += ["-o", "StrictHostKeyChecking=ask"]
    if jumps:
        words += ["-J", ",".join(f"{jump.user}@{_bracketed(jump.host)}:{jump.port}" for jump in jumps)]
    return shlex.join([*words, "-p", str(port), f"{user}@{alias}"])


def _bracketed(address: str) -> str:
    return f"[{address}]" if ":" in address else address
