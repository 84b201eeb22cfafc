"""Variables of tasks on a command line, and in files as docker reads them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import click

from tflaunch.errors import EXIT_USAGE, TflaunchError, describe_os_error


def variables_of(given: Iterable[str], file: Path | None) -> dict[str, str]:
    """Return the variables of a file, and of words ``NAME=VALUE`` or ``NAME``, which has the value that it has here.

    Raises:
        click.UsageError: a word names no variable, or one that is not set here.
        TflaunchError: the file cannot be read, or one of its lines is none of these.
    """
    found = {}
    for where, word in [*_lines_of(file), *(("-e", word) for word in given)]:
        name, equals, value = word.partition("=")
        if not name or any(letter.isspace() for letter in name):
            raise click.UsageError(f"{where}: {word!r} is not a variable; write NAME=VALUE.")
        if not equals and name not in os.environ:
            raise click.UsageError(f"{where}: {name} is not set here; write {name}=VALUE.")
        found[name] = value if equals else os.environ[name]
    return found


def _lines_of(file: Path | None) -> list[tuple[str, str]]:
    """Return the lines of a file that are neither empty nor comments, each after its place."""
    if file is None:
        return []
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise TflaunchError(f"--env-file: {describe_os_error(error)}", EXIT_USAGE) from None
    except ValueError:
        raise TflaunchError(f"--env-file: {file} is not UTF-8 text", EXIT_USAGE) from None
    lines = [(f"{file}:{number}", line.strip()) for number, line in enumerate(text.splitlines(), 1)]
    return [(place, line) for place, line in lines if line and not line.startswith("#")]
