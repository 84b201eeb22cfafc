"""Report versions and program of a task's interpreter.

Sent as source to the interpreter in the task's command and run in the task's environment and directory, with the
command's remaining arguments. Prints one line of JSON. Does not import TensorFlow.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import sys
from importlib import metadata

_TENSORFLOW = ("tensorflow", "tensorflow-cpu", "tensorflow-rocm", "tf-nightly", "tf-nightly-cpu")
_BACKUP = re.compile(rb"BackupAndRestore\(\s*(?:backup_dir\s*=\s*)?[\"']([^\"'\n]+)[\"']")
_WITH_VALUE = ("-W", "-X")  # options of Python that take a value


def _version(*names: str) -> str | None:
    for name in names:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None


def _program(words: list[str]) -> tuple[str, str]:
    """Return "-m" and a module, "" and a file, or "" twice, from Python's arguments."""
    while words:
        word, *words = words
        if word in ("-m", "-c"):
            return ("-m", words[0]) if word == "-m" and words else ("", "")
        if word in _WITH_VALUE:
            words = words[1:]
        elif not word.startswith("-"):
            return "", word
    return "", ""


def _module(name: str) -> str | None:
    sys.path.insert(0, "")
    try:
        found = importlib.util.find_spec(name)
        if found is not None and found.submodule_search_locations is not None:
            found = importlib.util.find_spec(name + ".__main__")
    except (ImportError, ValueError):
        return None
    return None if found is None else found.origin


def _source(path: str) -> bytes | None:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return None


def main(words: list[str]) -> None:
    """Print the report."""
    has_tensorboard = importlib.util.find_spec("tensorboard") is not None  # before `_module` adds the directory
    option, name = _program(words)
    path = _module(name) if option else name or None
    source = None if path is None else _source(path)
    backups = [match.decode("utf-8", "replace") for match in _BACKUP.findall(source or b"")]
    known = {
        "python": "{}.{}.{}".format(*sys.version_info[:3]),
        "tensorflow": _version(*_TENSORFLOW),
        "keras": _version("keras"),
        "tf_keras": _version("tf-keras", "tf_keras"),
        "has_tensorboard": has_tensorboard,
        "program": None if path is None else os.path.abspath(path),
        "sha256": None if source is None else hashlib.sha256(source).hexdigest(),
        "is_missing": source is None and bool(name),
        "backs_up": b"BackupAndRestore" in (source or b""),
        "backups": backups,
    }
    print(json.dumps(known))


if __name__ == "__main__":
    main(sys.argv[1:])
