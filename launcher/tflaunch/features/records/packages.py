"""Find the interpreter that a command would start and the packages that it would import, without starting it."""

from __future__ import annotations

import glob
import os
import platform
import sys
from collections.abc import Mapping
from typing import NamedTuple

from tflaunch_worker.inspect import interpreter

_SUFFIX = ".dist-info"


class Interpreter(NamedTuple):
    """An interpreter: its path and version, "" if unknown, and its packages by name, with their versions."""

    path: str
    version: str
    packages: dict[str, str]


def find_interpreter(argv: list[str], env: Mapping[str, str]) -> Interpreter:
    """Return the interpreter that a command is or, as far as known, would start.

    Args:
        argv: the command.
        env: its whole environment.
    """
    python = interpreter.find_python(argv[0], env)
    if python is None:
        return Interpreter("", "", {})
    packages = {}
    for place in reversed(interpreter.package_directories(python, env)):  # of two, the first is imported
        for path in glob.glob(os.path.join(glob.escape(place), "*-*" + _SUFFIX)):
            name, _, version = os.path.basename(path)[: -len(_SUFFIX)].partition("-")
            packages[name.lower().replace("_", "-").replace(".", "-")] = version
    return Interpreter(python, _version(python), packages)


def _version(python: str) -> str:
    if os.path.realpath(python) == os.path.realpath(sys.executable):
        return platform.python_version()
    prefix = os.path.dirname(os.path.dirname(os.path.abspath(python)))
    settings = interpreter.environment_settings(prefix) or {}
    version = settings.get("version", "")
    return version or interpreter.directory_name(python, settings)[len("python") :].rstrip("*")
