"""The files of ssh's configuration, and what they say of a destination, as ssh_config(5) tells.

Deliberately different: a `Match` block with a criterion that is not known here never applies.
"""

from __future__ import annotations

import glob
import os
import pwd
import re
import shlex
import socket
import stat
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tflaunch.transport.base import LinkError
from tflaunch.transport.ssh_algorithms import KEYWORDS
from tflaunch.transport.ssh_patterns import matches

DEFAULT_PORT = 22
MAX_INCLUDES = 16
MAX_BYTES = 4 * 1024 * 1024
MAX_FILES = 1000
MAX_LINE = 64 * 1024
PROXIES = ("proxyjump", "proxycommand")

_LINE = re.compile(r"(\w+)(?:\s*=\s*|\s+)(.+)")
_COMMENT = re.compile(r"""("[^"]*"|'[^']*')|\s#.*""")
_TOKEN = re.compile(r"%(.?)|\$\{(\w+)\}")
_READ = {
    *("hostname", "port", "user", "identityfile", "identitiesonly", "identityagent", "connecttimeout"),
    *("userknownhostsfile", "globalknownhostsfile", "hostkeyalias", "stricthostkeychecking", *PROXIES, *KEYWORDS),
    *("canonicalizehostname", "canonicaldomains", "canonicalizemaxdots", "canonicalizefallbacklocal"),
}
_NUMBER = re.compile(r"[0-9]{1,5}")
_CRITERIA = ("host", "originalhost", "user", "localuser", "exec")
_EXEC_PATIENCE = 10.0


class Setting(NamedTuple):
    """A line of a file; ``files`` are the contents of what it includes."""

    place: str
    key: str
    value: str
    files: tuple[Sequence[Setting], ...] = ()

    def words(self) -> list[str]:
        """Return the words of the value, without quotes."""
        try:
            return shlex.split(self.value)
        except ValueError as error:
            raise LinkError(f"{self.place}: {shown(self.value)} is malformed: {error}") from None


def parse(path: Path, folder: Path, *, is_users: bool = False) -> Sequence[Setting]:
    """Return the settings in a file and in those that it includes.

    Args:
        path: the file.
        folder: what it includes is relative to it.
        is_users: the file is the user's own: no other user may be able to write to it, or to what it includes.

    Raises:
        LinkError: a file cannot be read, is malformed or is writable by others.
    """
    return _Reader(folder, is_users=is_users).read(path, 0)


class _Reader:
    """Reads a file with what it includes, within bounds: files that include each other twice would never end."""

    def __init__(self, folder: Path, *, is_users: bool) -> None:
        self._folder = folder
        self._is_users = is_users
        self._left = MAX_FILES

    def read(self, path: Path, depth: int) -> Sequence[Setting]:
        """Return the settings of a file, which is included ``depth`` levels deep."""
        self._left -= 1
        if depth > MAX_INCLUDES:
            raise LinkError(f"{path} is included {depth} levels deep; does it include itself?")
        if self._left < 0:
            raise LinkError(f"{path} is the {MAX_FILES + 1}th file that is included; do files include each other?")
        lines = [line.strip() for line in _text(path, is_users=self._is_users).split("\n")]
        return [
            self._setting(f"{path}:{number}", line, depth)
            for number, line in enumerate(lines, 1)
            if line and not line.startswith("#")
        ]

    def _setting(self, place: str, text: str, depth: int) -> Setting:
        match = _LINE.match(text)
        if match is None:
            raise LinkError(f"{place}: {shown(text)} is not a keyword with a value")
        if len(text) > MAX_LINE:
            raise LinkError(f"{place}: the line is longer than {MAX_LINE // 1024} KiB; is this a configuration of ssh?")
        if not text.replace("\t", " ").isprintable():
            raise LinkError(f"{place}: the line contains control characters; remove them")
        key, value = match[1].lower(), match[2]
        if key != "proxycommand":  # where # is no comment
            value = _COMMENT.sub(lambda found: found[1] or "", value).strip()
        setting = Setting(place, key, value)
        if key != "include":
            return setting
        files = tuple(self.read(found, depth + 1) for found in _files(setting.words(), self._folder))
        return setting._replace(files=files)


def _text(path: Path, *, is_users: bool) -> str:
    try:
        with path.open("rb") as file:
            if is_users:
                _refuse_files_of_others(path, os.fstat(file.fileno()))
            raw = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise LinkError(f"{path} cannot be read: {error.strerror}") from None
    if len(raw) > MAX_BYTES:
        raise LinkError(f"{path} is larger than {MAX_BYTES // 2**20} MiB, which no SSH configuration is")
    return raw.decode(errors="replace")


def _refuse_files_of_others(path: Path, state: os.stat_result) -> None:
    if state.st_uid not in (0, os.getuid()):
        raise LinkError(f"{path} belongs to another user, so ssh would refuse it; use a file of your own")
    if state.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        mended = shlex.join(["chmod", "go-w", str(path)])
        raise LinkError(f"{path} can be written by other users, so ssh would refuse it; run `{mended}`")


def _files(patterns: Iterable[str], folder: Path) -> Iterator[Path]:
    for pattern in patterns:
        for found in sorted(glob.glob(os.path.join(folder, os.path.expanduser(pattern)))):
            if os.path.isfile(found):
                yield Path(found)


class Options:
    """What is said of a destination: of every keyword the first value, of IdentityFile all."""

    def __init__(self, alias: str, user: str | None, port: int | None) -> None:
        """Begin with what stands before all files."""
        self.values: dict[str, list[str]] = {}
        self.places: dict[str, str] = {}
        self._alias = alias
        self._final_name = ""
        self._local_user = _local_user()
        self._wants_final = False
        for key, value in (("user", user), ("port", port)):
            if value is not None:
                self.values[key], self.places[key] = [str(value)], "`ssh`"

    def read(self, files: Iterable[Sequence[Setting]]) -> None:
        """Take what files say; where they ask for it, once more with the name that was found."""
        files = tuple(files)
        for settings in files:
            self._take(settings, is_active=True)
        name = self._canonical_name()
        if name or self._wants_final:
            self._final_name = (name or self._address()).lower()
            for settings in files:
                self._take(settings, is_active=True)

    def get(self, key: str, default: str = "") -> str:
        """Return the value of a keyword."""
        return " ".join(self.values[key]) if key in self.values else default

    def is_on(self, key: str) -> bool:
        """Return whether a keyword says yes."""
        return self.get(key).lower() in ("yes", "true")

    def port(self) -> int:
        """Return the port."""
        text = self.get("port", str(DEFAULT_PORT))
        if not _NUMBER.fullmatch(text) or not 1 <= int(text) <= 65535:
            raise LinkError(f"{self.places['port']}: {shown(text)} is not a port; give a number from 1 to 65535")
        return int(text)

    def tokens(self) -> Mapping[str, str]:
        """Return the values of %h and the like."""
        address = self._address()
        return {
            "%": "%",
            "d": os.path.expanduser("~"),
            "h": address,
            "i": str(os.getuid()),
            "k": self.get("hostkeyalias", self._alias),
            "L": socket.gethostname().partition(".")[0],
            "l": socket.gethostname(),
            "n": self._alias,
            "p": self.get("port", str(DEFAULT_PORT)),
            "r": self.get("user", self._local_user),
            "u": self._local_user,
        }

    def expanded(self, text: str, key: str) -> str:
        """Return a value with its tokens and variables filled in."""
        return _expanded(text, self.tokens(), self.places.get(key, ""))

    def path(self, text: str, key: str) -> str:
        """Return a path with its ~, tokens and variables filled in."""
        return self.expanded(os.path.expanduser(text), key)

    def _address(self) -> str:
        if self._final_name or "hostname" not in self.values:
            return self._final_name or self._alias
        return _expanded(self.get("hostname"), {"h": self._alias, "%": "%"}, self.places["hostname"])

    def _canonical_name(self) -> str:
        """Return the name completed with one of CanonicalDomains, "" if nobody wants that."""
        wish = self.get("canonicalizehostname").lower()
        is_direct = all(self.get(key, "none").lower() == "none" for key in PROXIES)
        name, most = self._address(), self.get("canonicalizemaxdots", "1")
        if wish != "always" and not (wish == "yes" and is_direct):
            return ""
        if _NUMBER.fullmatch(most) and name.count(".") > int(most):
            return ""
        for domain in self.get("canonicaldomains").split():
            try:
                socket.getaddrinfo(f"{name}.{domain}", None)
            except (OSError, UnicodeError):
                continue
            return f"{name}.{domain}"
        if self.get("canonicalizefallbacklocal").lower() == "no":
            raise LinkError(f"the name {name} resolves in none of your CanonicalDomains; correct `ssh` in the spec")
        return name

    def _take(self, settings: Sequence[Setting], *, is_active: bool) -> None:
        """Take settings; ``is_active``: whether the block that includes them applies."""
        applies = is_active
        for setting in settings:
            if setting.key == "include":
                for file in setting.files:
                    self._take(file, is_active=applies)
            elif setting.key == "host":
                applies = is_active and matches(setting.words(), self._final_name or self._alias)
            elif setting.key == "match":
                words = [part for word in setting.words() for part in _criterion(word)]
                self._wants_final |= any(word.lower() in ("final", "!final") for word in words)
                applies = is_active and self._are_fulfilled(words, setting.place)
            elif applies and setting.key == "identityfile":
                known = self.values.setdefault(setting.key, [])
                known += [word for word in setting.words()[:1] if word not in known]
                self.places[setting.key] = setting.place
            elif applies and setting.key in _READ and setting.key not in self.values:
                is_command = setting.key == "proxycommand"
                self.values[setting.key] = [setting.value] if is_command else setting.words()
                self.places[setting.key] = setting.place

    def _are_fulfilled(self, words: list[str], place: str) -> bool:
        """Return whether all criteria of a Match line are met."""
        while words:
            name = words.pop(0).lower()
            kind = name.removeprefix("!")
            if kind == "all":
                is_fulfilled: bool | None = True
            elif kind in ("canonical", "final"):
                is_fulfilled = bool(self._final_name)
            elif not words:
                raise LinkError(f"{place}: {name[:80]} has no value")
            else:
                is_fulfilled = self._does_hold(kind, words.pop(0), place)
            if is_fulfilled is None or is_fulfilled is name.startswith("!"):
                return False
        return True

    def _does_hold(self, kind: str, value: str, place: str) -> bool | None:
        """Return whether a criterion of Match is met, None if nobody here knows what it means."""
        if kind == "exec":
            return _does_succeed(_expanded(value, self.tokens(), place), place)
        if kind in ("host", "originalhost"):
            name = self._address() if kind == "host" else self._alias
            return matches(value.lower().split(","), name.lower())  # a line with Host does look at the case
        if kind in ("user", "localuser"):
            user = self.get("user", self._local_user) if kind == "user" else self._local_user
            return matches(value.split(","), user)
        return None


def _does_succeed(command: str, place: str) -> bool:
    shell = os.environ.get("SHELL") or "/bin/sh"
    none = subprocess.DEVNULL  # not the user's terminal, which belongs to the tasks' words
    try:
        done = subprocess.run(
            [shell, "-c", command], stdin=none, stdout=none, stderr=none, timeout=_EXEC_PATIENCE, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LinkError(f"{place}: the command of `Match exec` does not end well: {error}") from None
    return done.returncode == 0


def _criterion(word: str) -> list[str]:
    """A criterion may be written as one word with its value."""
    name, sign, value = word.partition("=")
    return [name, value] if sign and name.lower().removeprefix("!") in _CRITERIA else [word]


def _local_user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        raise LinkError(f"no user has the id {os.getuid()} on this machine; run tflaunch as one that exists") from None


def _expanded(text: str, tokens: Mapping[str, str], place: str) -> str:
    """Fill in ``%x`` and ``${VARIABLE}``."""

    def value(found: re.Match[str]) -> str:
        known = tokens.get(found[1]) if found[2] is None else os.environ.get(found[2])
        if known is None:
            raise LinkError(f"{place}: {found[0]} in {shown(text)} has no value; write it out")
        return known

    return _TOKEN.sub(value, text)


def shown(text: str) -> str:
    """Return what stands in a file, as it may stand in a message."""
    return repr(text if len(text) <= 80 else f"{text[:77]}...")
