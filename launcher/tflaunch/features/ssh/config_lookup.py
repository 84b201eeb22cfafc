"""Look a destination up in the user's OpenSSH configuration.

Where an OpenSSH client is installed, `ssh -G` prints exactly what `ssh` would use. Elsewhere paramiko's `SSHConfig`
reads ~/.ssh/config and /etc/ssh/ssh_config; what it cannot parse is an error rather than a guess.
"""

from __future__ import annotations

import glob
import io
import os
import pwd
import re
import shlex
import shutil
import signal
import stat
import subprocess
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import paramiko

from tflaunch.features.ssh.transport import KEYWORDS
from tflaunch.transport.base import LinkError
from tflaunch_worker.readable import duration_words

SYSTEM_FILE = Path("/etc/ssh/ssh_config")
MAX_BYTES = 4 * 1024 * 1024

Values = Mapping[str, Sequence[str]]
"""Values by keyword in lower case. Lists of algorithms and key files are present only if the user set them."""

_TIMEOUT = 10.0  # seconds for `ssh -G`, which may run the commands of `Match exec` and resolve names
_PARALLEL = 8  # concurrent `ssh -G` processes: each takes about 6 ms of CPU
_LINE = re.compile(r"([A-Za-z0-9]+)(?: (.*))?")
_FILE_LISTS = ("userknownhostsfile", "globalknownhostsfile")
# paramiko ignores an Include, and treats unknown criteria of Match as fulfilled.
_INCLUDE = re.compile(r"include\b[\s=]*(.*)", re.IGNORECASE)
_UNKNOWN = re.compile(
    r"(?i:match)\b(?!\s+(?:!?(?:all|canonical|final|(?:host|originalhost|user|localuser)\s+[^\s\"=]+)(?:\s+|$))+$)"
    r"|(?i:ciphers|macs|kexalgorithms|hostkeyalgorithms)[\s=]+[-+^]"
)
_REMEDY = "install an OpenSSH client (`ssh`), which reads it completely"


Lookup = Callable[[str, str | None, int | None], Values]
"""Returns the options for a destination, user and port, including `hostname`, `user`, `port`; or raises LinkError."""


def find_lookup(system_file: Path = SYSTEM_FILE) -> Lookup:
    """Return a lookup with OpenSSH's client, or with paramiko where it is missing."""
    program = shutil.which("ssh")
    if program is not None:
        try:
            return OpenSshReader(program, system_file).lookup
        except LinkError:
            pass  # another program of this name, or a client older than 6.8, which lacks -G
    return ParamikoReader(system_file).lookup


class OpenSshReader:
    """Asks `ssh -G`. Thread-safe."""

    def __init__(self, program: str, system_file: Path = SYSTEM_FILE) -> None:
        """Ask a client for its defaults; it reads ``system_file`` after the user's file.

        Raises:
            LinkError: it is not an OpenSSH client that supports -G.
        """
        self._program = program
        self._slots = threading.BoundedSemaphore(_PARALLEL)
        self._defaults: Values = {}
        self._files = ""
        self._defaults = self._ask(["-F", "/dev/null"], "localhost")
        self._files = _substitute_files(system_file)

    def lookup(self, alias: str, user: str | None, port: int | None) -> Values:
        """Return the options for a destination."""
        words = ["-F", "/dev/stdin"] if self._files else []
        words += ["-l", user] if user is not None else []
        words += ["-p", str(port)] if port is not None else []
        found = self._ask(words, alias)
        # Drop the client's own defaults: ours prefer what is fast here and what paramiko supports.
        return {
            key: value
            for key, value in found.items()
            if (key not in KEYWORDS and key != "identityfile") or value != self._defaults.get(key)
        }

    def _ask(self, words: Sequence[str], alias: str) -> Values:
        with self._slots, tempfile.TemporaryFile() as errors, tempfile.TemporaryFile() as files:
            files.write(self._files.encode())
            files.seek(0)
            command = [self._program, "-T", "-G", *words, "--", alias]
            try:
                # In its own session, so that what `Match exec` started is killed, too.
                process = subprocess.Popen(
                    command, stdin=files, stdout=subprocess.PIPE, stderr=errors, start_new_session=True
                )
            except OSError as error:
                raise LinkError(f"{self._program} cannot be run: {error.strerror}") from None
            with process:
                try:
                    said, _ = process.communicate(timeout=_TIMEOUT)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
                    raise LinkError(
                        f"`{_by_hand(alias)}` does not end within {duration_words(_TIMEOUT)}; see `Match exec` and "
                        "CanonicalizeHostname in your SSH configuration"
                    ) from None
            if process.returncode:
                errors.seek(0)
                reason = "; ".join(_printable(errors.read(4096)).split("\n")[:3]) or f"exit code {process.returncode}"
                raise LinkError(f"`{_by_hand(alias)}` fails: {reason[:400]}; correct the SSH configuration")
        return parse_answer(said, alias)


def parse_answer(raw: bytes, alias: str) -> Values:
    """Parse the output of `ssh -G` into values by keyword; messages name ``alias``.

    Raises:
        LinkError: it is something else.
    """
    values: dict[str, list[str]] = {}
    for line in raw[:MAX_BYTES].decode(errors="replace").removesuffix("\n").split("\n"):
        match = _LINE.fullmatch(line)
        if match is None or not line.replace("\t", " ").isprintable():
            raise LinkError(f"`{_by_hand(alias)}` prints {shown(line)}, which is not a keyword with a value")
        key, value = match[1].lower(), match[2] or ""
        # File names are separated by spaces and not quoted, but absolute at this point.
        values.setdefault(key, []).extend(re.split(r" +(?=[/~]|none\b)", value) if key in _FILE_LISTS else [value])
    for key in ("hostname", "user", "port"):
        if not values.get(key, [""])[0]:
            raise LinkError(f"`{_by_hand(alias)}` prints no {key}; is it OpenSSH's client?")
    return values


def local_user() -> str:
    """Return this user's name, which is the default on other hosts.

    Raises:
        LinkError: it has none.
    """
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        raise LinkError(f"no user has the id {os.getuid()} on this machine; run tflaunch as one that exists") from None


def _substitute_files(system_file: Path) -> str:
    """Return text including the user's and system's files; "" if `ssh` finds them.

    `ssh` takes the home directory from the user database, and so would miss the files of a different HOME.
    """
    home = os.path.expanduser("~")
    try:
        is_usual = os.path.realpath(home) == os.path.realpath(pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError:
        is_usual = True  # `ssh` reports users that do not exist
    if is_usual and system_file == SYSTEM_FILE:
        return ""
    return (
        f'Include "{home}/.ssh/config"\nMatch all\nInclude "{system_file}"\n'
        f'UserKnownHostsFile "{home}/.ssh/known_hosts" "{home}/.ssh/known_hosts2"\n'
    )


class ParamikoReader:
    """Reader of ~/.ssh/config and the system's file, each once, with paramiko."""

    def __init__(self, system_file: Path = SYSTEM_FILE) -> None:
        """Read the files; a missing file counts as empty.

        Raises:
            LinkError: a file cannot be read, or holds lines that paramiko does not support.
        """
        self._texts = [_text(Path("~/.ssh/config").expanduser()), _text(system_file)]

    def lookup(self, alias: str, user: str | None, port: int | None) -> Values:
        """Return the options for a destination."""
        given = "".join(f"{key} {value}\n" for key, value in (("User", user), ("Port", port)) if value is not None)
        config = paramiko.SSHConfig()
        try:
            for text in (given, *self._texts):
                config.parse(io.StringIO(text))
            found = {"user": user or local_user(), "port": "22", **_without_second_proxy(config.lookup(alias))}
            return {
                key: value if isinstance(value, list) else shlex.split(value) if key in _FILE_LISTS else [value]
                for key, value in found.items()
                if value is not None
            }
        except LinkError:
            raise
        except Exception as error:  # noqa: BLE001 (paramiko's parser raises arbitrary errors for malformed lines)
            reason = _printable(str(error).encode()).replace("\n", " ")[:200] or type(error).__name__
            raise LinkError(f"the SSH configuration cannot be used for {alias}: {reason}; {_REMEDY}") from None


def _without_second_proxy(found: dict[str, Any]) -> dict[str, Any]:
    """Keep the first of ProxyJump and ProxyCommand, as ssh, but not `ProxyJump none`."""
    said = [key for key in found if key in ("proxyjump", "proxycommand")]
    if len(said) == 2:
        first, second = said
        del found[first if first == "proxyjump" and found[first].lower() == "none" else second]
    return found


def _text(path: Path) -> str:
    """Return a file's text, valid for paramiko and not writable by other users."""
    try:
        state, text = path.stat(), path.read_text(errors="replace")
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise LinkError(f"{path} cannot be read: {error.strerror}") from None
    if state.st_uid not in (0, os.getuid()) or state.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        command = shlex.join(["chmod", "go-w", str(path)])
        raise LinkError(f"{path} is not yours, or can be written by other users; make it yours and run `{command}`")
    for number, line in enumerate(map(str.strip, text.split("\n")), 1):
        if not line.startswith("#") and not line.replace("\t", " ").isprintable():
            raise LinkError(f"{path}:{number}: the line contains control characters; remove them")
        included = _INCLUDE.match(line)
        if _UNKNOWN.match(line) or (included and _is_file(path.parent, included[1])):
            raise LinkError(f"{path}:{number}: {shown(line)} is not understood without an OpenSSH client; {_REMEDY}")
    return text


def _is_file(folder: Path, patterns: str) -> bool:
    return any(glob.glob(os.path.join(folder, os.path.expanduser(word))) for word in patterns.replace('"', " ").split())


def _by_hand(alias: str) -> str:
    return shlex.join(["ssh", "-G", alias[:80]])


def _printable(raw: bytes) -> str:
    lines = (line.strip() for line in raw.decode(errors="replace").split("\n"))
    return "\n".join("".join(sign if sign.isprintable() else "?" for sign in line) for line in lines if line)


def shown(text: str) -> str:
    """Quote and shorten text from a file for a message."""
    return repr(text if len(text) <= 80 else f"{text[:77]}...")
