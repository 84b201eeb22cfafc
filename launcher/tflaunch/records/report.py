"""A run in one file, for somebody else to look at: what was planned, what happened, what was said; no secrets."""

from __future__ import annotations

import io
import json
import os
import re
import stat
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple
from urllib.parse import quote, urlsplit

from tflaunch.logs.task_log import path_of

_HIDDEN = b"***"
_SHORTEST = 6  # shorter values stand in too many harmless places
_LOG_TAIL = 4 * 1024 * 1024
_CHUNK = 1024 * 1024
_MOST_PLAN = 256 * 1024 * 1024
_MOST_IN_MEMORY = 1024 * 1024

_WORDS = frozenset((
    "KEY", "KEYS", "TOKEN", "TOKENS", "SECRET", "SECRETS", "PASSWORD", "PASSWORDS", "PASSWD", "PASS", "PASSPHRASE",
    "CREDENTIAL", "CREDENTIALS", "CREDS", "AUTH", "AUTHORIZATION", "APIKEY", "BEARER", "COOKIE", "DSN",
))  # fmt: skip
_ENDINGS = ("TOKEN", "SECRET", "PASSWORD", "PASSWD", "APIKEY", "ACCESSKEY", "SECRETKEY")
_OPTION_WORDS = "password|passwd|passphrase|token|secret|key|apikey|credentials?"
_OPTION = re.compile(rf"--?(?:[A-Za-z0-9]{{1,40}}[-_]){{0,6}}(?:{_OPTION_WORDS})", re.IGNORECASE)

# What looks secret by its place, whatever the plan says. Each pattern keeps what is before the value.
_PLACES = (
    rb"(://[^\s/:@\"'\\]{0,200}:)[^\s/@\"'\\]{1,1000}(?=@)",
    rb"(--?(?:[A-Za-z0-9]{1,40}[-_]){0,6}(?i:%s)(?:=| |\", ?\"))[^\s\"'\\]{1,4000}" % _OPTION_WORDS.encode(),
    rb"(\b(?:[A-Z0-9]{1,40}_){0,8}(?:%s)(?:_[A-Z0-9]{1,40}){0,4}(?:=|\": ?\"))[^\s\"'\\]{1,4000}"
    % "|".join(sorted(_WORDS, key=len, reverse=True)).encode(),
)
_LONGEST_PLACE = 6000


def looks_secret(name: str) -> bool:
    """Whether the value of a variable should not be shown, as far as its name says: API_KEY, not KEYBOARD."""
    words = [word for word in re.split(r"[^A-Z0-9]+", name.upper()) if word]
    is_password = "PWD" in words and len(words) > 1  # alone it is the working directory
    return is_password or any(word in _WORDS or word.endswith(_ENDINGS) for word in words)


def pack(run: Path, diagnosis: str, target: Path | IO[bytes], *, replace: bool = False) -> None:
    """Write the report on a run, a tar file packed with gzip.

    Args:
        run: the run's directory.
        diagnosis: what happened, in words.
        target: the file to make, or a stream to write to.
        replace: whether a file that exists may be replaced.

    Raises:
        OSError: something cannot be read or written; a file that was begun is removed.
    """
    if not isinstance(target, Path):
        _write(run, diagnosis, target)
        return
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | (os.O_TRUNC if replace else os.O_EXCL)
    with open(os.open(target, flags, 0o600), "wb") as file:
        is_ours = stat.S_ISREG(os.fstat(file.fileno()).st_mode)
        try:
            _write(run, diagnosis, file)
            file.flush()
        except BaseException:
            if is_ours:
                target.unlink(missing_ok=True)
            raise


class _Source(NamedTuple):
    """A file of the run; ``most`` is how many of its last bytes are packed, None for all."""

    name: str
    path: Path
    most: int | None


def _write(run: Path, diagnosis: str, out: IO[bytes]) -> None:
    curtain = Curtain(_secrets(run))
    contents = []
    with tarfile.open(fileobj=out, mode="w|gz") as archive:
        for name, text in (("diagnosis.txt", diagnosis), ("machine.txt", _machine())):
            _add_text(archive, f"{run.name}-report/{name}", curtain.hide(text.rstrip("\n") + "\n"))
            contents.append(name)
        for source in _sources(run):
            note = _add_file(archive, f"{run.name}-report/{source.name}", source, curtain)
            contents.append(f"{source.name}{note}")
        contents.append(f"\nSecrets that were found are replaced by {_HIDDEN.decode()}; look before you share.")
        _add_text(archive, f"{run.name}-report/contents.txt", curtain.hide("\n".join(contents) + "\n"))


def _sources(run: Path) -> Iterator[_Source]:
    for path in [*sorted(run.glob("spec.*")), run / "plan.json", run / "events.jsonl"]:
        yield _Source(path.name, path, None)
    found = sorted(run.glob("logs/*"))
    if (run / "logs").is_symlink():  # --log-dir, where other things may stand beside them
        names = {path_of(run, _field(task, "task", str)).name for task in _tasks(run)}
        found = [path for path in found if path.name in names]
    for path in found:
        yield _Source(f"logs/{path.name}", path, _LOG_TAIL)


def _add_file(archive: tarfile.TarFile, name: str, source: _Source, curtain: Curtain) -> str:
    """Pack a file and return a note about what of it is there."""
    try:
        descriptor = os.open(source.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        return f": not packed, {error.strerror}"
    with open(descriptor, "rb") as file:
        state = os.fstat(descriptor)
        if not stat.S_ISREG(state.st_mode):
            return ": not packed, it is no file"
        is_cut = source.most is not None and state.st_size > source.most
        if is_cut and source.most is not None:
            file.seek(state.st_size - source.most)
        # The size must be known first, and is not that of the file.
        with tempfile.SpooledTemporaryFile(_MOST_IN_MEMORY) as hidden:
            _copy(file, hidden, curtain, limit=state.st_size - file.tell(), is_cut=is_cut)
            entry = tarfile.TarInfo(name)
            entry.size = hidden.tell()
            entry.mtime = int(state.st_mtime)
            entry.mode = 0o600
            hidden.seek(0)
            archive.addfile(entry, hidden)
    return f": the last {_LOG_TAIL // 2**20} MiB of {state.st_size / 2**20:.0f}" if is_cut else ""


def _copy(file: IO[bytes], out: IO[bytes], curtain: Curtain, limit: int, *, is_cut: bool) -> None:
    """Copy without secrets; a file that grows meanwhile is read up to ``limit`` bytes.

    Where a beginning is cut off, so may be half a secret, which nobody would know as one: what comes before
    the first whole line is left out, too.
    """
    doubtful = curtain.longest if is_cut else 0
    for shown in curtain.through(_pieces(file, limit)):
        doubtful, certain = _without(doubtful, shown)
        out.write(certain)


def _pieces(file: IO[bytes], limit: int) -> Iterator[bytes]:
    while limit > 0 and (data := file.read(min(_CHUNK, limit))):
        limit -= len(data)
        yield data


def _without(doubtful: int, data: bytes) -> tuple[int, bytes]:
    """Leave out so many bytes, at most those of the first line; return how many are yet to be left out."""
    line = data.find(b"\n", 0, doubtful)
    return (0, data[line + 1 :]) if line >= 0 else (max(0, doubtful - len(data)), data[doubtful:])


def _add_text(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(data)
    entry.mode = 0o600
    archive.addfile(entry, io.BytesIO(data))


class Curtain:
    """Hides values, and after them what looks secret by its place."""

    def __init__(self, values: set[str]) -> None:
        """Prepare.

        Args:
            values: what must not be seen, as text; short ones are let through.
        """
        forms = {form for value in values for form in _forms(value) if len(form) >= _SHORTEST}
        ordered = sorted(forms, key=lambda form: (-len(form), form))  # the longest first, as one may begin another
        self.longest = max([_LONGEST_PLACE, *map(len, ordered)])
        """No match is longer, in bytes."""
        # One after the other, as a value may go on behind what looks like its end at a place.
        self._stages = [re.compile(b"|".join(_PLACES))]
        if ordered:
            self._stages.insert(0, re.compile(b"|".join(map(re.escape, ordered))))

    def hide(self, text: str) -> bytes:
        """Return a whole text without secrets."""
        return b"".join(self.through([text.encode("utf-8", "surrogateescape")]))

    def through(self, pieces: Iterable[bytes]) -> Iterable[bytes]:
        """Return what can be shown of a text that comes in pieces, in pieces."""
        for pattern in self._stages:
            pieces = self._replace(pattern, pieces)
        return pieces

    def _replace(self, pattern: re.Pattern[bytes], pieces: Iterable[bytes]) -> Iterator[bytes]:
        rest = b""
        for piece in pieces:
            rest += piece
            safe = len(rest) - self.longest  # what begins before it has ended, too
            if safe > 0:
                shown, rest = _split(pattern, rest, safe)
                yield shown
        yield _split(pattern, rest, len(rest))[0]


def _split(pattern: re.Pattern[bytes], data: bytes, safe: int) -> tuple[bytes, bytes]:
    """Replace the matches that begin before a place, and part the data there, or behind the last of them."""
    shown, position = [], 0
    for match in pattern.finditer(data):
        if match.start() >= safe:
            break
        shown += [data[position : match.start()], match[match.lastindex] if match.lastindex else b"", _HIDDEN]
        position = match.end()
    end = max(position, safe)
    return b"".join([*shown, data[position:end]]), data[end:]


def _forms(value: str) -> set[bytes]:
    """How a value may stand in a file: as it is, line by line, in JSON, in JSON within JSON, in a URL."""
    forms = {value, value.strip(), *(line.strip() for line in value.splitlines()), quote(value, safe="")}
    for is_ascii in (True, False):
        once = json.dumps(value, ensure_ascii=is_ascii)[1:-1]
        forms |= {once, json.dumps(once, ensure_ascii=is_ascii)[1:-1]}
    return {form.encode("utf-8", "surrogateescape") for form in forms}


def _secrets(run: Path) -> set[str]:
    """The values that the plan, and the environment of whoever asks, show to be secret."""
    found = _of_environment(os.environ)
    for task in _tasks(run):
        found |= _of_environment(_field(task, "env", dict)) | _of_command(_field(task, "argv", list))
    return found


def _tasks(run: Path) -> list[Any]:
    """The tasks of the plan; none when the run ended before it was written."""
    try:
        with (run / "plan.json").open(encoding="utf-8") as file:
            plan = json.loads(file.read(_MOST_PLAN))
        return [*plan["tasks"], *plan["sidecars"]]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _field(task: Any, name: str, kind: type[Any]) -> Any:
    """A field of a task, empty when it is damaged."""
    value = task.get(name) if isinstance(task, dict) else None
    return value if isinstance(value, kind) else kind()


def _of_environment(environment: Mapping[str, Any]) -> set[str]:
    found = set()
    for name, value in environment.items():
        found |= {str(value)} if looks_secret(name) else _passwords(str(value))
    return found


def _of_command(argv: list[Any]) -> set[str]:
    """``--token=VALUE`` and ``--token VALUE``."""
    found, words = set(), [str(word) for word in argv]
    for word, following in zip(words, [*words[1:], ""], strict=False):
        found |= _passwords(word)
        option, equals, value = word.partition("=")
        name = option.lstrip("-")
        if equals and (option.startswith("-") or name.isidentifier()) and looks_secret(name):
            found.add(value)
        if _OPTION.fullmatch(word) and not following.startswith("-"):
            found.add(following)
    return found


def _passwords(text: str) -> set[str]:
    found = set()
    for url in re.findall(r"\w{1,20}://[^\s\"'<>]{1,1000}", text):
        try:
            password = urlsplit(url).password
        except ValueError:
            continue
        if password:
            found.add(password)
    return found


def _machine() -> str:
    """What this installation is made of; nothing is imported to find out."""
    import platform
    from importlib import metadata

    from tflaunch import __version__

    lines = [
        f"tflaunch {__version__}",
        f"Python {platform.python_version()} ({platform.python_implementation()})",
        f"platform {platform.platform()}",
        f"kernel {platform.release()} {platform.version()}",
        f"cores {os.cpu_count()}",
    ]
    for package in ("tensorflow", "tf-keras", "keras", "tensorboard", "click", "paramiko"):
        try:
            lines.append(f"{package} {metadata.version(package)}")
        except metadata.PackageNotFoundError:
            lines.append(f"{package} is not installed here")
    return "\n".join(lines)
