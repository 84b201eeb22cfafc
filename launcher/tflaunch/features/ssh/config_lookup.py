"""Look a destination up with `ssh -G`, which prints exactly what `ssh` would use."""

import os
import pwd
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tflaunch.features.ssh.transport import KEYWORDS
from tflaunch.transport.base import LinkError
from tflaunch_worker.readable import duration_words, printable

DEFAULT_PORT = 22
SYSTEM_FILE = Path("/etc/ssh/ssh_config")
MAX_BYTES = 4 * 1024 * 1024

Values = Mapping[str, Sequence[str]]
"""Values by keyword in lower case. Lists of algorithms and key files are present only if the user set them."""

_TIMEOUT = 10.0  # seconds for `ssh -G`, which may run the commands of `Match exec` and resolve names
_PARALLEL = 8  # concurrent `ssh -G` processes: each takes about 6 ms of CPU
_LINE = re.compile(r"([A-Za-z0-9]+)(?: (.*))?")
_FILE_LISTS = ("userknownhostsfile", "globalknownhostsfile")

Lookup = Callable[[str, str | None, int | None], Values]
"""Returns the options for a destination, user and port, including `hostname`, `user`, `port`; or raises LinkError."""


def find_lookup(system_file: Path = SYSTEM_FILE) -> Lookup:
    """Return a lookup with OpenSSH's client, or one without any configuration.

    Raises:
        LinkError: there is a configuration, and no client to read it.
    """
    program = shutil.which("ssh")
    if program is not None:
        try:
            return OpenSshReader(program, system_file).lookup
        except LinkError:
            pass  # another program of this name, or a client older than 6.8, which lacks -G
    for path in (os.path.expanduser("~/.ssh/config"), system_file):
        if os.path.exists(path):
            raise LinkError(f"{path} cannot be read without an OpenSSH client (`ssh`), 6.8 or newer; install one")
    return _look_up_nothing


def _look_up_nothing(alias: str, user: str | None, port: int | None) -> Values:
    return {"hostname": [alias], "user": [user or local_user()], "port": [str(port or DEFAULT_PORT)]}


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
                    answer, _ = process.communicate(timeout=_TIMEOUT)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
                    raise LinkError(
                        f"`{_by_hand(alias)}` does not end within {duration_words(_TIMEOUT)}; see `Match exec` and "
                        "CanonicalizeHostname in your SSH configuration"
                    ) from None
            if process.returncode:
                errors.seek(0)
                lines = errors.read(4096).decode(errors="replace").split("\n")
                said = "; ".join([printable(line.strip()) for line in lines if line.strip()][:3])
                reason = said or f"exit code {process.returncode}"
                raise LinkError(f"`{_by_hand(alias)}` fails: {reason[:400]}; correct the SSH configuration")
        return parse_answer(answer, alias)


def parse_answer(raw: bytes, alias: str) -> Values:
    """Parse the output of `ssh -G`; raise a `LinkError` about ``alias`` if it is none."""
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
    """Return this user's name, the default on other hosts, or raise `LinkError`."""
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


def _by_hand(alias: str) -> str:
    return shlex.join(["ssh", "-G", alias[:80]])


def shown(text: str) -> str:
    """Quote and shorten text from a file for a message."""
    return repr(text if len(text) <= 80 else f"{text[:77]}...")
