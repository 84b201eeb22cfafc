"""Read the values of a plan's secrets from their sources on this machine.

They are only in the memory of supervisors and agents, and in the environment of tasks.
"""

import codecs
import os
from collections.abc import Mapping
from pathlib import Path

from tflaunch.errors import EXIT_USAGE, Problem, TflaunchError
from tflaunch.plan.model import SecretSource
from tflaunch.user_text import UserTextError

_MOST_BYTES = 64 * 1024
"""Of all secrets together; Linux allows 128 KiB for one variable."""


class Secrets(dict[str, "str | None"]):
    """Variable to value, None if it could not be read; its `repr` shows no values."""

    def __repr__(self) -> str:
        return f"Secrets({', '.join(self)})"


NO_SECRETS = Secrets()


def read_secrets(sources: Mapping[str, SecretSource]) -> Secrets:
    """Return all secrets of a plan.

    Raises:
        TflaunchError: some cannot be read; says in one line for each where it was expected, and what to do.
    """
    secrets, problems = find_secrets(sources)
    if problems:
        raise TflaunchError("\n".join(problem.sentence() for problem in problems), EXIT_USAGE)
    return secrets


def find_secrets(sources: Mapping[str, SecretSource]) -> tuple[Secrets, list[Problem]]:
    """Return the secrets, None for those that cannot be read, and what is wrong there."""
    found: dict[str, str | None] = {}
    problems = []
    for name, source in sources.items():
        try:
            found[name] = _read(source)
        except UserTextError as error:
            found[name] = None
            problems.append(Problem("error", f"secrets.{name}", str(error), error.hint))
    size = sum(len(os.fsencode(value or "")) for value in found.values())
    if size > _MOST_BYTES:
        message = f"have {size} bytes, and at most {_MOST_BYTES} fit into an environment"
        problems.append(Problem("error", "secrets", message, "let programs read the long ones from files"))
    return Secrets(found), problems


def _read(source: SecretSource) -> str:
    if source.file is None:
        value = os.environ.get(source.env or "", "")
        if not value:
            state = "is empty" if source.env in os.environ else "is not set"
            raise UserTextError(f"variable {source.env!r} {state}", "export it where tflaunch is started")
        return value
    path = Path(source.file).expanduser()
    try:
        with path.open("rb") as file:
            value = os.fsdecode(file.read(_MOST_BYTES + 1).removeprefix(codecs.BOM_UTF8)).rstrip("\r\n")
    except OSError as error:
        raise UserTextError(f"{path}: {error.strerror}", "write the value into that file") from None
    if not value or "\0" in value:
        state = "contains a NUL character" if value else "is empty"
        raise UserTextError(f"{path} {state}", "write the value into that file")
    return value
