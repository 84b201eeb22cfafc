"""Read the text of a spec, from a file or a stream, without parsing it."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import BinaryIO

from tflaunch.errors import Problem, SpecError
from tflaunch_worker.named_tuple import NamedTuple

MAX_BYTES = 4 * 1024 * 1024

SUFFIXES = (".json", ".yaml", ".yml", ".toml")
"""Endings of specs."""

_STREAMS = ("/dev", "/dev/fd", "/proc/self/fd")  # of /dev/stdin, and of <(COMMAND) in a shell
_TOML_LINE = r"""\s*(?:\[|[\w."'-]+\s*=)"""


class SpecFileError(Exception):
    """Error for a text or setting that cannot be read: message, hint and place."""

    def __init__(self, message: str, hint: str, where: str = "") -> None:
        super().__init__(message)
        self.problem = Problem("error", where, message, hint)


class SpecFile(NamedTuple):
    """The text of a spec.

    Attributes:
        source: its origin, for messages.
        directory: the base of its relative paths.
        suffix: its format, as the suffix of a file name.
        text: the text.
    """

    source: str
    directory: Path
    suffix: str
    text: str


def _other_path(path: Path) -> str:
    """Return a question about a spec that is meant by a path without one, "" if none is like it."""
    import difflib  # slow to import, and rarely needed

    try:
        place, name = (path, "cluster.json") if path.is_dir() else (path.parent, path.name)
        known = [each.name for each in place.iterdir() if each.suffix in SUFFIXES]
    except OSError:
        return ""
    near = difflib.get_close_matches(name, known, n=1) or (known if place == path and len(known) == 1 else [])
    return f"did you mean {place / near[0]}?" if near else ""


def read_spec_file(path: Path, *, or_empty: bool = False) -> SpecFile:
    """Return the text of a spec in a file; ``or_empty`` allows an empty file.

    Raises:
        SpecError: the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            if not path.suffix and str(path.parent) in _STREAMS:
                return read_spec_stream(file, str(path))
            return SpecFile(str(path), path.parent, path.suffix, _decoded(file.read(MAX_BYTES + 1), or_empty))
    except OSError as error:
        hint = _other_path(path) or "give the path of a cluster spec"
        if isinstance(error, PermissionError):
            hint = f"user {os.getuid()} needs permission to read it and to enter {path.absolute().parent}"
        problem = Problem("error", "", f"cannot be read: {error.strerror}", hint)
        raise SpecError(str(path), [problem]) from None
    except SpecFileError as error:
        raise SpecError(str(path), [error.problem]) from None


def read_spec_stream(stream: BinaryIO, source: str) -> SpecFile:
    """Return the text of a spec in a stream such as standard input.

    Paths in it are relative to the working directory.

    Raises:
        SpecError: the stream cannot be read.
    """
    try:
        text = _decoded(stream.read(MAX_BYTES + 1))
    except SpecFileError as error:
        raise SpecError(source, [error.problem]) from None
    return SpecFile(source, Path(), _suffix_of(text), text)


def _decoded(raw: bytes, or_empty: bool = False) -> str:
    if len(raw) > MAX_BYTES:
        raise SpecFileError(f"is larger than {MAX_BYTES // 2**20} MiB", "a cluster spec is a page of text")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SpecFileError(f"is not text in UTF-8 (byte {error.start})", "save it as UTF-8") from None
    if not text.strip() and not or_empty:
        raise SpecFileError("is empty", 'write at least {"cluster": {"worker": 2}, "command": [...]}')
    return text


def _suffix_of(text: str) -> str:
    """Guess a text's format from its start: JSON begins with a brace, TOML with a table or `key =`."""
    if text.lstrip().startswith("{"):
        return ".json"
    first = next((line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")), "")
    return ".toml" if re.match(_TOML_LINE, first) else ".yaml"
