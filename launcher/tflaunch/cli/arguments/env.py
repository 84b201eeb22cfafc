"""Variables of tasks on a command line, and in files as Compose reads them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

import click

from tflaunch.clusterspec.templates import quote_in_spec
from tflaunch.errors import EXIT_USAGE, TflaunchError
from tflaunch.user_text import UserTextError, read_user_text

_LINE = re.compile(r"(?:export\s+)?(?P<name>[^\s=]+)(?:\s*=\s*(?P<value>.*))?")
_VALUE = re.compile(  # one in quotes or without, then a comment
    r"""(?:'(?P<single>[^']*)'|"(?P<double>(?:[^"\\]|\\.)*)"|(?P<plain>[^'"].*?)??)(?:(?:^|\s+)\#.*)?"""
)
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t"}


def variables_of(given: Iterable[str], file: Path | None) -> dict[str, str]:
    """Return the variables of a file, and of ``NAME=VALUE`` or ``NAME``, as set here.

    They are for the `env` of a spec: what is not typed on the command line is quoted there.

    Raises:
        click.UsageError: a word names no variable, or one that is not set here.
        TflaunchError: the file cannot be read, or one of its lines is none of these.
    """
    variables = {} if file is None else _variables_in(file)
    for word in given:
        name, equals, value = word.partition("=")
        if not name or any(letter.isspace() for letter in name):
            raise click.UsageError(f"-e: {name!r} is not the name of a variable; write NAME=VALUE.")
        if not equals and name not in os.environ:
            raise click.UsageError(f"-e: {name} is not set here; write {name}=VALUE.")
        variables[name] = value if equals else quote_in_spec(os.environ[name])
    return variables


def _variables_in(file: Path) -> dict[str, str]:
    """Return the variables of a file's lines that are neither empty nor comments."""
    try:
        text = read_user_text(file)
    except UserTextError as error:
        raise TflaunchError(f"--env-file: {file} {error}{error.hint and f'; {error.hint}'}", EXIT_USAGE) from None
    variables = {}
    for number, line in enumerate(map(str.strip, text.split("\n")), 1):
        if line and not line.startswith("#"):
            name, value = _variable_in(line, f"{file}:{number}")
            variables[name] = quote_in_spec(value)
    return variables


def _variable_in(line: str, place: str) -> tuple[str, str]:
    """Return name and value; errors do not quote the line, which may be secret."""
    parts = _LINE.fullmatch(line)
    if parts is None:
        raise click.UsageError(f"{place}: this is not a variable; write NAME=VALUE.")
    if parts["value"] is not None:
        return parts["name"], _unquoted(parts["value"], place)
    if parts["name"] not in os.environ:
        raise click.UsageError(f"{place}: this variable is not set here; write NAME=VALUE.")
    return parts["name"], os.environ[parts["name"]]


def _unquoted(text: str, place: str) -> str:
    parts = _VALUE.fullmatch(text)
    if parts is None:
        raise click.UsageError(f"{place}: the quotes of this value do not enclose it; put it in one pair of them.")
    if parts["double"] is not None:
        return re.sub(r"\\(.)", lambda match: _ESCAPES.get(match[1], match[1]), parts["double"])
    return parts["single"] or parts["plain"] or ""
