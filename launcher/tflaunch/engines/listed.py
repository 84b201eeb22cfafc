"""Hosts that are listed, one per line: in a file, or by a program."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

from tflaunch.engines import Engine, Found, NotFound

_PATIENCE = 30.0  # seconds for a program
_MOST_BYTES = 1024 * 1024


class File(Engine):
    """``file:PATH``, relative to the spec's file."""

    def find(self, where: str, directory: Path) -> Found:
        """Return the lines of a file.

        Raises:
            NotFound: it cannot be read.
        """
        path = directory / where
        try:
            with path.open("rb") as file:
                return _lines(file.read(_MOST_BYTES))
        except OSError as error:
            raise NotFound(f"{path} cannot be read: {error.strerror}", "write one host per line into it") from None


class Exec(Engine):
    """``exec:WORDS``, a program that runs beside the spec's file, without a shell."""

    def find(self, where: str, directory: Path) -> Found:
        """Return the lines that a program prints.

        Raises:
            NotFound: it cannot be run, fails, or does not end.
        """
        remedy = "let it print hosts and end with 0"
        try:
            argv = shlex.split(where)
            done = subprocess.run(
                argv, cwd=directory, stdin=subprocess.DEVNULL, capture_output=True, timeout=_PATIENCE, check=False
            )
        except (OSError, ValueError, IndexError) as error:
            raise NotFound(
                f"{where!r} cannot be run: {error}", "name a program that prints one host per line"
            ) from None
        except subprocess.TimeoutExpired:
            raise NotFound(f"{where!r} did not end within {_PATIENCE:g} s", remedy) from None
        if done.returncode != 0:
            said = done.stderr.decode("utf-8", "replace").strip().splitlines()
            words = f": {said[-1]}" if said else ""
            raise NotFound(f"{where!r} ended with code {done.returncode}{words}", remedy)
        return _lines(done.stdout[:_MOST_BYTES])


def _lines(data: bytes) -> Found:
    return Found(data.decode("utf-8", "replace").splitlines())
