"""Call a program's function in a task, and leave the result for that program.

This file is copied to a directory with the pickled function and cloudpickle, and is run there as a program. It needs
nothing else of this package. The supervisor needs its names only, so pickle is imported where it is used.
"""

from __future__ import annotations

import importlib
import json
import os
import pickle
import sys
import traceback
from typing import TYPE_CHECKING, Any, NoReturn, Tuple

if TYPE_CHECKING:
    from types import ModuleType

PROGRAM = "call.py"
"""Name of the copy of this file."""

ABOUT = "about.json"
"""File with the function's name and the version of Python that pickled it, and for `preload` with the modules that it
imports, and a reason why others must not be imported before it ("" without any)."""

SEARCHED = "searched.json"
"""File with the directories in which the sending program searches modules; missing on other machines."""

CALL = "call.pickle"
"""File with the pickled function and its arguments."""

OUTCOME = "outcome"
"""File in the task's directory with the outcome: a line of JSON, then the pickled value or exception."""

MOST_BYTES = 64 * 1024 * 1024
"""Maximum size of that file."""

_MOST_TRACEBACK = 100_000  # characters
_HEAD = 1024 * 1024  # bytes, enough for the line of JSON


def main() -> None:
    """Call the function and leave its outcome."""
    directory = os.path.dirname(os.path.abspath(__file__))
    about = read_file(directory, ABOUT)
    _require_version(about["python"])
    cloudpickle = importlib.import_module("cloudpickle")  # beside this file, whose directory is the first in sys.path
    searched = read_searched(directory)
    sys.path[0] = os.getcwd()  # as for a program that is started there; and our files must not hide the user's modules
    sys.path += [path for path in searched if path not in sys.path]
    function, args, kwargs = _load(directory, about["name"])
    try:
        value = function(*args, **kwargs)
    except Exception as error:
        error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next  # without this file's own frame
        _leave_exception(cloudpickle, error)
        sys.excepthook(type(error), error, error.__traceback__)
        sys.exit(1)
    _leave_value(cloudpickle, about["name"], value)


def read_searched(directory: str) -> list[str]:
    """Return the sender's directories of modules; none on other machines."""
    return list(read_file(directory, SEARCHED)) if os.path.exists(os.path.join(directory, SEARCHED)) else []


def read_file(directory: str, name: str) -> Any:
    """Return the content of a file in the function's directory."""
    with open(os.path.join(directory, name), encoding="utf-8") as file:
        return json.load(file)


def _require_version(wanted: list[int]) -> None:
    """Exit if another minor version of Python pickled the function: bytecode differs."""
    if list(sys.version_info[:2]) != wanted:
        here = f"{sys.executable} on {os.uname().nodename} is Python {sys.version_info[0]}.{sys.version_info[1]}"
        there = f"{wanted[0]}.{wanted[1]}"
        _refuse(f"{here}, and a function sent by Python {there} needs {there}; name one as hosts.X.python or command")


def _load(directory: str, name: str) -> Tuple[Any, Any, Any]:
    try:
        with open(os.path.join(directory, CALL), "rb") as file:
            function, args, kwargs = pickle.load(file)  # noqa: S301 - the function that was sent here
        return function, args, kwargs
    except ImportError as error:
        here = f"on {os.uname().nodename}"
        _refuse(f"{name} cannot be called {here}: {error}; install it there, or copy your own modules with `sync`")


def _leave_value(cloudpickle: ModuleType, name: str, value: object) -> None:
    try:
        data = cloudpickle.dumps(value)
    except Exception as error:
        kind = type(value).__name__
        _refuse(f"what {name} returned ({kind}) cannot be pickled: {error}; return plain data, or save it to a file")
    if len(data) > MOST_BYTES - _HEAD:
        sizes = f"{len(data) / 2**20:.0f} MiB, and the limit is {(MOST_BYTES - _HEAD) // 2**20} MiB"
        _refuse(f"what {name} returned is too large ({sizes}); save it to a file, and return its path")
    _leave({"kind": "returned"}, data)


def _leave_exception(cloudpickle: ModuleType, error: Exception) -> None:
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))[-_MOST_TRACEBACK:]
    text = text.encode("utf-8", "replace").decode("utf-8")
    try:
        data = cloudpickle.dumps(error)
    except Exception:
        data = b""  # the text says what it was
    _leave({"kind": "raised", "traceback": text}, data if len(data) <= MOST_BYTES - _HEAD else b"")


def _leave(about: dict[str, str], data: bytes) -> None:
    path = os.path.join(os.environ["TFLAUNCH_TASK_DIR"], OUTCOME)
    with open(f"{path}.new", "wb") as file:
        file.write(json.dumps(about).encode("ascii") + b"\n" + data)
    os.replace(f"{path}.new", path)


def _refuse(sentence: str) -> NoReturn:
    sys.exit(f"tflaunch: {sentence}")


if __name__ == "__main__":
    main()
