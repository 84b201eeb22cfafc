"""Pack a run into one file to share: its plan, its events and its output, without secrets."""

from __future__ import annotations

import functools
import heapq
import io
import json
import os
import re
import shutil
import stat
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple
from urllib.parse import quote, urlsplit

from tflaunch.client import known_secrets
from tflaunch.store.log_writer import path_of
from tflaunch_worker import wire

_HIDDEN = b"***"
_SHORTEST = 6  # shorter values occur in too many harmless places
_LOG_TAIL = 4 * 1024 * 1024
_CHUNK = 1024 * 1024
_MOST_PLAN = 256 * 1024 * 1024
_MOST_IN_MEMORY = 1024 * 1024

_WORDS = frozenset((
    "KEY", "KEYS", "TOKEN", "TOKENS", "SECRET", "SECRETS", "PASSWORD", "PASSWORDS", "PASSWD", "PASS", "PASSPHRASE",
    "PASSCODE", "CREDENTIAL", "CREDENTIALS", "CREDS", "AUTH", "AUTHORIZATION", "APIKEY", "BEARER", "COOKIE", "DSN",
    "PAT", "JWT", "SESSIONID", "ACCOUNTKEY", "SIGNATURE", "SAS",
))  # fmt: skip
_ENDINGS = (
    "TOKEN", "SECRET", "PASSWORD", "PASSWD", "PASSPHRASE", "APIKEY", "ACCESSKEY", "SECRETKEY", "ACCOUNTKEY",
    "PRIVATEKEY", "AUTHKEY", "SESSIONID", "CREDENTIALS",
)  # fmt: skip
_OPTION_WORDS = (
    "password|passwd|passphrase|pwd|(?:auth|access|refresh|api)?token|secret|(?:api|access|account|secret|private|auth)?key"
    "|credentials?|dsn|bearer|jwt|pat|sas|sessionid"
)
_CAMEL = "[a-z][a-z0-9]{0,40}(?:Password|Passphrase|Token|Secret|Key|Credentials?|Jwt|SessionId)"  # --authToken
_OPTION = re.compile(rf"--?(?:(?:[A-Za-z0-9]{{1,40}}[-_]){{0,6}}(?i:{_OPTION_WORDS})|{_CAMEL})")
_SHORT_OPTION = "-p"  # in many programs the password, in many others a port or a path
_NO_PASSWORD = re.compile(r"[\d.:,/-]*|[./~].*")

# Text that looks secret by its context or its form, whatever the plan says. The first group of each pattern, the text
# before the value, is kept. All are bounded, so that hostile text takes no longer than other text, and begin with a
# literal where possible, which makes them ten times faster.
_IS = rb"[\"'\\]{0,4}[ \t]{0,3}[:=][ \t]{0,3}"
_VALUE = (  # quoted, quoted within a JSON string, or bare; a separate group tells which
    rb"(?:(\")|\\{1,3}\"|\\{0,3}')?)(?!(?:None|null|true|false)\b|\*\*\*)"
    rb"(?(2)(?:[^\"\\\n]|\\[^\n]){1,4000}|[^\s\"'\\;&]{1,4000})"
)
_MIXED = rb"(?=[^\s\"'\\]{0,200}\d)(?=[^\s\"'\\]{0,200}[A-Za-z])[^\s\"'\\;&,]{8,4000}"
_KINDS = ("api", "access", "account", "private", "auth", "encryption", "signing", "storage", "client", "refresh")
_OF_KIND = "|".join(f"(?<={kind}{dash}%s)" for kind in _KINDS for dash in ("", "[_-]"))
_NAMES = (
    rb"(?i:pass)(?i:word|wd|phrase|code)",
    rb"(?i:secret)(?i:[_-]?access)?(?i:[_-]?key)?",
    rb"(?i:key)(?i:%s)" % (_OF_KIND % (("key",) * 2 * len(_KINDS))).encode(),
    rb"(?i:token)(?i:%s)" % (_OF_KIND % (("token",) * 2 * len(_KINDS))).encode(),
    rb"(?i:session)[_-]?(?i:id|key|token)",
    rb"(?i:jwt)",
    rb"(?i:dsn)",
    rb"(?i:pwd)(?!%s[\"']?/)" % _IS,
)
_PLACES = (
    # https://user:PASSWORD@host, https://TOKEN@host
    rb"(://[^\s/:@\"'\\]{0,200}:)[^\s/@\"'\\]{1,1000}(?=@)",
    rb"(https?://)[^\s/:@\"'\\]{1,1000}(?=@)",
    # --token VALUE, --authToken=VALUE, also as two items of a list in JSON
    rb"(--?(?:(?:[A-Za-z0-9]{1,40}[-_]){0,6}(?i:%s)|%s)(?:=| |\",\s{0,40}\"))[^\s\"'\\]{1,4000}"
    % (_OPTION_WORDS.encode(), _CAMEL.encode()),
    rb"(\"-p\",\s{0,40}\")(?!(?:%s)\")(?:[^\"\\\n]|\\[^\n]){1,4000}" % _NO_PASSWORD.pattern.encode(),
    # API_KEY=VALUE, "API_KEY": "VALUE"
    rb"(\b(?:[A-Z0-9]{1,40}_){0,8}(?:%s)(?:_[A-Z0-9]{1,40}){0,4}(?:=|\": ?\"))[^\s\"'\\]{1,4000}"
    % "|".join(sorted(_WORDS, key=len, reverse=True)).encode(),
    # password=VALUE, "password": "VALUE", Password=VALUE;, password: VALUE; also in JSON within JSON
    *(rb"(%s%s%s" % (name, _IS, _VALUE) for name in _NAMES),
    # token: VALUE, unless it is a plain word or number, like the tokens of a language model
    rb"((?i:token)%s(?:\\{0,3}[\"'])?)%s" % (_IS, _MIXED),
    # Authorization: Bearer VALUE
    rb"((?i:authorization)%s(?:\\{0,3}[\"'])?(?:(?i:bearer|basic|digest|token) )?)[^\s\"'\\]{1,4000}" % _IS,
    rb"(\b(?i:bearer) )%s" % _MIXED,
    # https://host/path?sig=VALUE
    rb"([?&](?i:sig|signature|sas|token|key|code|x-amz-(?:signature|credential|security-token)|x-goog-signature"
    rb"|(?:api|access|account|auth)[_-]?(?:key|token))=)[^\s&\"'\\<>]{1,4000}",
    # A private key, to its end or as far as it is present
    rb"(-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----)(?:[A-Za-z0-9+/=\s\\:,]|-(?!----)){1,16000}",
    # Tokens that detect-secrets does not find, or only in part: Hugging Face, GitHub, Google, Anthropic, OpenAI,
    # Databricks, Telegram, and JSON Web Tokens
    rb"()hf_[A-Za-z0-9]{20,200}",
    rb"()github_pat_\w{20,200}",
    rb"()gh[pousr]_[A-Za-z0-9]{20,200}",
    rb"()AIza[\w-]{35}",
    rb"()ya29\.[\w-]{20,1000}",
    rb"()sk-(?:ant|proj|svcacct)-[\w-]{20,400}",
    rb"()dapi[0-9a-f]{32}",
    rb"()\b\d{8,10}:AA[\w-]{33}\b",
    rb"()eyJ[\w=-]{5,4000}\.[\w=-]{5,4000}(?:\.[\w+/=-]{0,4000})?",
)
_LONGEST_PLACE = 20_000


def looks_secret(name: str) -> bool:
    """Return whether a variable's name suggests that its value is secret: API_KEY, but not KEYBOARD."""
    parted = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)  # authToken
    words = [word for word in re.split(r"[^A-Z0-9]+", parted.upper()) if word]
    is_password = "PWD" in words and len(words) > 1  # PWD alone is the working directory
    return is_password or any(word in _WORDS or word.endswith(_ENDINGS) for word in words)


class Entry(NamedTuple):
    """A file of a report: ``size`` is in bytes, ``hidden`` is the number of secrets replaced in it.

    ``note`` says which part of the file is included, "" for all of it.
    """

    name: str
    size: int
    hidden: int
    note: str


def pack(run: Path, diagnosis: str, target: Path | IO[bytes], *, replace: bool = False) -> list[Entry]:
    """Write the report on a run, a tar file compressed with gzip, and return its entries.

    Args:
        run: the run's directory.
        diagnosis: a text about what happened.
        target: the file to create, or a stream to write to.
        replace: whether to replace an existing file.

    Raises:
        OSError: something cannot be read or written; an incomplete file is removed.
    """
    if not isinstance(target, Path):
        return _write(run, diagnosis, target)
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | (os.O_TRUNC if replace else os.O_EXCL)
    with open(os.open(target, flags, 0o600), "wb") as file:
        is_ours = stat.S_ISREG(os.fstat(file.fileno()).st_mode)
        try:
            entries = _write(run, diagnosis, file)
            file.flush()
        except BaseException:
            if is_ours:
                target.unlink(missing_ok=True)
            raise
    return entries


def preview(run: Path, diagnosis: str, out: IO[bytes] | None = None) -> list[Entry]:
    """Return the entries of a report, and write their text to ``out``, each below a line with its name.

    Raises:
        OSError: something cannot be read or written.
    """
    entries = []
    for entry, data in _contents(run, diagnosis):
        entries.append(entry)
        if out is not None and data is not None:
            out.write(f"==> {entry.name} <==\n".encode())
            shutil.copyfileobj(data, out)
            out.write(b"\n")
    return entries


class _Source(NamedTuple):
    """A file of the run; ``most`` is how many bytes at its end are packed, None for all."""

    name: str
    path: Path
    most: int | None


def _write(run: Path, diagnosis: str, out: IO[bytes]) -> list[Entry]:
    entries = []
    with tarfile.open(fileobj=out, mode="w|gz") as archive:
        for entry, data in _contents(run, diagnosis):
            entries.append(entry)
            if data is not None:
                _add(archive, f"{run.name}-report/{entry.name}", data, entry.size)
        lines = [f"{entry.name}{f': {entry.note}' if entry.note else ''}" for entry in entries]
        lines.append(f"\nSecrets that were found are replaced by {_HIDDEN.decode()}; look before you share.\n")
        contents = "\n".join(lines).encode("utf-8", "surrogateescape")
        _add(archive, f"{run.name}-report/contents.txt", io.BytesIO(contents), len(contents))
    return entries


def _contents(run: Path, diagnosis: str) -> Iterator[tuple[Entry, IO[bytes] | None]]:
    """Yield the files of a report without secrets; those that cannot be read have no data."""
    values = _secrets(run)
    for name, text in (("diagnosis.txt", diagnosis), ("machine.txt", _machine())):
        curtain = Curtain(values)
        data = curtain.hide(text.rstrip("\n") + "\n")
        yield Entry(name, len(data), curtain.hidden, ""), io.BytesIO(data)
    for source in _sources(run):
        # The size must be known before the data is packed, and differs from the file's.
        with tempfile.SpooledTemporaryFile(_MOST_IN_MEMORY) as shown:
            curtain = Curtain(values)
            try:
                note = _copy(source, shown, curtain)
            except _NotPackedError as error:
                yield Entry(source.name, 0, 0, f"not packed, {error}"), None
                continue
            size = shown.tell()
            shown.seek(0)
            yield Entry(source.name, size, curtain.hidden, note), shown


class _NotPackedError(Exception):
    """A file cannot be read, or is not a regular file."""


def _sources(run: Path) -> Iterator[_Source]:
    for path in [*sorted(run.glob("spec.*")), run / "plan.json", run / "events.jsonl"]:
        yield _Source(path.name, path, None)
    found = sorted(run.glob("logs/*"))
    if (run / "logs").is_symlink():  # --log-dir, which may contain other files
        names = {path_of(run, _field(task, "task", str)).name for task in _tasks(run)}
        found = [path for path in found if path.name in names]
    for path in found:
        yield _Source(f"logs/{path.name}", path, _LOG_TAIL)


def _copy(source: _Source, out: IO[bytes], curtain: Curtain) -> str:
    """Copy a file without secrets, and return a note about which part of it is included.

    Cutting off the beginning of a file may cut a secret in half, which is then not recognized: the text before the
    first complete line is left out, too.

    Raises:
        _NotPackedError: the file cannot be read.
    """
    try:
        descriptor = os.open(source.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise _NotPackedError(error.strerror) from None
    with open(descriptor, "rb") as file:
        state = os.fstat(descriptor)
        if not stat.S_ISREG(state.st_mode):
            raise _NotPackedError("it is not a regular file")
        is_cut = source.most is not None and state.st_size > source.most
        if is_cut and source.most is not None:
            file.seek(state.st_size - source.most)
        doubtful = curtain.longest if is_cut else 0
        for shown in curtain.through(_pieces(file, state.st_size - file.tell())):  # the file may be growing
            doubtful, certain = _without(doubtful, shown)
            out.write(certain)
    return f"the last {_LOG_TAIL // 2**20} MiB of {state.st_size / 2**20:.0f}" if is_cut else ""


def _pieces(file: IO[bytes], limit: int) -> Iterator[bytes]:
    while limit > 0 and (data := file.read(min(_CHUNK, limit))):
        limit -= len(data)
        yield data


def _without(doubtful: int, data: bytes) -> tuple[int, bytes]:
    """Drop up to ``doubtful`` bytes, at most the first line; return how many remain to drop, and the data."""
    line = data.find(b"\n", 0, doubtful)
    return (0, data[line + 1 :]) if line >= 0 else (max(0, doubtful - len(data)), data[doubtful:])


def _add(archive: tarfile.TarFile, name: str, data: IO[bytes], size: int) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = size
    entry.mtime = int(time.time())
    entry.mode = 0o600
    archive.addfile(entry, data)


_Find = Callable[[bytes, int], Iterator[tuple[int, int, bytes]]]
"""Finds what to hide in data from a position on: start, end, and the text before the value to keep."""


class Curtain:
    """Hides given values, then what looks secret by its context, then what is secret by its form."""

    def __init__(self, values: set[str]) -> None:
        """Prepare to hide secrets.

        Args:
            values: the values to hide, as text; those shorter than `_SHORTEST` are not hidden.
        """
        forms = {form for value in values for form in _forms(value) if len(form) >= _SHORTEST}
        ordered = sorted(forms, key=lambda form: (-len(form), form))  # longest first, as one may be a prefix of another
        self.longest = max([_LONGEST_PLACE, *map(len, ordered)])
        """The maximum length of a match, in bytes."""
        self.hidden = 0
        """The number of values hidden so far."""
        # In separate passes, as a given value may continue after what looks like its end in a context.
        self._stages: list[_Find] = [_matches_of(_places()), _known_forms]
        if ordered:
            self._stages.insert(0, _matches_of([re.compile(b"|".join(map(re.escape, ordered)))]))

    def hide(self, text: str) -> bytes:
        """Return a complete text without secrets."""
        return b"".join(self.through([text.encode("utf-8", "surrogateescape")]))

    def through(self, pieces: Iterable[bytes]) -> Iterable[bytes]:
        """Yield a text without secrets, from and in pieces."""
        for find in self._stages:
            pieces = self._replace(find, pieces)
        return pieces

    def _replace(self, find: _Find, pieces: Iterable[bytes]) -> Iterator[bytes]:
        data, begin = b"", 0  # the data before `begin` was shown, and is kept as context for what follows
        for piece in pieces:
            data += piece
            safe = len(data) - self.longest  # a match that begins before it is complete
            if safe > begin:
                shown, end = self._split(find, data, begin, safe)
                yield shown
                kept = max(0, end - known_secrets.BEFORE)
                data, begin = data[kept:], end - kept
        yield self._split(find, data, begin, len(data))[0]

    def _split(self, find: _Find, data: bytes, begin: int, safe: int) -> tuple[bytes, int]:
        """Return the data from ``begin`` to ``safe`` without the secrets that begin in it, and where it ends."""
        shown, position = [], begin
        for start, end, kept in find(data, begin):
            if start >= max(safe, position):
                break
            if start >= position:
                shown += [data[position:start], kept, _HIDDEN]
                self.hidden += data[start + len(kept) : end] != _HIDDEN  # otherwise an earlier stage has counted it
            position = max(position, end)
        end = max(position, safe)
        return b"".join([*shown, data[position:end]]), end


def _matches_of(patterns: Sequence[re.Pattern[bytes]]) -> _Find:
    def matches(pattern: re.Pattern[bytes], data: bytes, begin: int) -> Iterator[tuple[int, int, bytes]]:
        for match in pattern.finditer(data, begin):
            yield match.start(), match.end(), match[1] if pattern.groups else b""

    return lambda data, begin: heapq.merge(*(matches(pattern, data, begin) for pattern in patterns))


@functools.cache
def _places() -> list[re.Pattern[bytes]]:
    return [re.compile(pattern) for pattern in _PLACES]


def _known_forms(data: bytes, begin: int) -> Iterator[tuple[int, int, bytes]]:
    for word in known_secrets.words(data, begin):
        first = max(word.start() - known_secrets.BEFORE, 0)
        for start, end in known_secrets.spans(data[first : word.end() + known_secrets.AFTER]):
            if first + start >= begin and first + end > word.start():
                yield first + start, first + end, b""


def _forms(value: str) -> set[bytes]:
    """Return a value's forms in files: unchanged, line by line, in JSON, in JSON within JSON, in a URL."""
    forms = {value, value.strip(), *(line.strip() for line in value.splitlines()), quote(value, safe="")}
    for is_ascii in (True, False):
        once = json.dumps(value, ensure_ascii=is_ascii)[1:-1]
        forms |= {once, json.dumps(once, ensure_ascii=is_ascii)[1:-1]}
    return {form.encode("utf-8", "surrogateescape") for form in forms}


def _secrets(run: Path) -> set[str]:
    """Return the values that the plan and this process's environment show to be secret."""
    found = _of_environment(os.environ)
    for task in _tasks(run):
        found |= _of_environment(_field(task, "env", dict)) | _of_command(_field(task, "argv", list))
    return found


def _tasks(run: Path) -> list[Any]:
    """Return the tasks of the plan; none if the run ended before the plan was written."""
    try:
        with (run / "plan.json").open("rb") as file:
            plan = wire.parse(file.read(_MOST_PLAN), max_values=_MOST_PLAN)
        return [*plan["tasks"], *plan["sidecars"]]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _field(task: Any, name: str, kind: type[Any]) -> Any:
    """Return a field of a task, empty if it is damaged."""
    value = task.get(name) if isinstance(task, dict) else None
    return value if isinstance(value, kind) else kind()


def _of_environment(environment: Mapping[str, Any]) -> set[str]:
    found = set()
    for name, value in environment.items():
        found |= {str(value)} if looks_secret(name) else _passwords(str(value))
    return found


def _of_command(argv: list[Any]) -> set[str]:
    """Return the secrets in a command: ``--token=VALUE`` and ``--token VALUE``."""
    found, words = set(), [str(word) for word in argv]
    for word, following in zip(words, [*words[1:], ""], strict=False):
        found |= _passwords(word)
        option, equals, value = word.partition("=")
        name = option.lstrip("-")
        if equals and (option.startswith("-") or name.isidentifier()) and looks_secret(name):
            found.add(value)
        if _OPTION.fullmatch(word) and not following.startswith("-"):
            found.add(following)
        if word == _SHORT_OPTION and not _NO_PASSWORD.fullmatch(following) and not following.isalpha():
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
    """Describe this machine and the versions of tflaunch and its packages, without importing the packages."""
    import platform
    from importlib import metadata

    import psutil

    from tflaunch import __version__

    memory = psutil.virtual_memory()
    lines = [
        f"tflaunch {__version__}",
        f"Python {platform.python_version()} ({platform.python_implementation()})",
        f"platform {platform.platform()}",
        f"kernel {platform.release()} {platform.version()}",
        f"cores {psutil.cpu_count()}, physical {psutil.cpu_count(logical=False)}",
        f"memory {memory.total:,} bytes, available {memory.available:,}",
    ]
    for package in ("tensorflow", "tf-keras", "keras", "tensorboard", "click", "paramiko", "psutil", "pydantic"):
        try:
            lines.append(f"{package} {metadata.version(package)}")
        except metadata.PackageNotFoundError:
            lines.append(f"{package} is not installed here")
    return "\n".join(lines)
