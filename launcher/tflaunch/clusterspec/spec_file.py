"""Read the text of a spec, from a file or a stream, without parsing it."""

import difflib
import re
from pathlib import Path
from typing import BinaryIO, NamedTuple

from tflaunch.errors import Problem, SpecError
from tflaunch.user_text import UserTextError, decode_user_text, read_user_text

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

    ``source``: its origin, for messages; ``directory``: the base of its relative paths; ``suffix``: its format, as the
    suffix of a file name.
    """

    source: str
    directory: Path
    suffix: str
    text: str


def _other_path(path: Path) -> str:
    """Return a question about the spec that is meant by a path without one."""
    otherwise = "give the path of a cluster spec"
    try:
        place, name = (path, "cluster.json") if path.is_dir() else (path.parent, path.name)
        known = [each.name for each in place.iterdir() if each.suffix in SUFFIXES]
    except OSError:
        return otherwise
    near = difflib.get_close_matches(name, known, n=1) or (known if place == path and len(known) == 1 else [])
    return f"did you mean {place / near[0]}?" if near else otherwise


def read_spec_file(path: Path, *, or_empty: bool = False) -> SpecFile:
    """Return the text of a spec in a file; ``or_empty`` allows an empty file.

    Raises:
        SpecError: the file cannot be read.
    """
    if not path.suffix and str(path.parent) in _STREAMS:
        try:
            with path.open("rb") as file:
                return read_spec_stream(file, str(path))
        except OSError as error:
            raise _unusable(str(path), f"cannot be read: {error.strerror}", "give the path of a cluster spec") from None
    try:
        text = read_user_text(path, MAX_BYTES)
    except UserTextError as error:
        raise _unusable(str(path), str(error), error.hint or _other_path(path)) from None
    return SpecFile(str(path), path.parent, path.suffix, text if or_empty else _not_empty(str(path), text))


def read_spec_stream(stream: BinaryIO, source: str) -> SpecFile:
    """Return the text of a spec in a stream such as standard input.

    Paths in it are relative to the working directory.

    Raises:
        SpecError: the stream cannot be read.
    """
    try:
        text = decode_user_text(stream.read(MAX_BYTES + 1), MAX_BYTES)
    except UserTextError as error:
        raise _unusable(source, str(error), error.hint) from None
    return SpecFile(source, Path(), _suffix_of(text), _not_empty(source, text))


def _unusable(source: str, message: str, hint: str) -> SpecError:
    return SpecError(source, [Problem.error("", message, hint)])


def _not_empty(source: str, text: str) -> str:
    if not text.strip():
        raise _unusable(source, "is empty", 'write at least {"cluster": {"worker": 2}, "command": [...]}')
    return text


def _suffix_of(text: str) -> str:
    """Guess a format: JSON begins with a brace, TOML with a table or `key =`."""
    if text.lstrip().startswith("{"):
        return ".json"
    first = next((line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")), "")
    return ".toml" if re.match(_TOML_LINE, first) else ".yaml"
