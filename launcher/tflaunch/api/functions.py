"""Functions as tasks: what is sent to the tasks, and what they returned or raised."""

from __future__ import annotations

import json
import os
import pickle
import re
import shutil
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from tflaunch.errors import EXIT_INTERNAL, EXIT_USAGE, TflaunchError
from tflaunch.plan.model import CODE_DIRECTORY, FUNCTION_DIRECTORY, Plan
from tflaunch_worker import function as caller
from tflaunch_worker import wire

_PROGRAM = f"{CODE_DIRECTORY}/{FUNCTION_DIRECTORY}/{caller.PROGRAM}"
_MOST_HEAD = 1024 * 1024  # bytes
_pickling = threading.Lock()  # which modules are pickled by value is a setting of the whole process


def spec_of(function: Callable[..., Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of the spec with which tasks call a function; ``command`` in ``fields`` is the interpreter."""
    name = re.sub(r"[^A-Za-z0-9._-]", "", name_of(function)).lstrip("._-")[:63]
    python = fields.get("command", "python3")
    interpreter = [python] if isinstance(python, str) else list(python)
    defaults = {"name": name or "function", "sync": {"paths": []}}
    return {**defaults, **fields, "command": [*interpreter, _PROGRAM]}


def name_of(function: Callable[..., Any]) -> str:
    """Return the name of a function, or of the type of another callable."""
    return str(getattr(function, "__name__", type(function).__name__))


def with_function(plan: Plan, directory: Path) -> Plan:
    """Return the plan of `spec_of` with the function in ``directory`` on this machine."""

    def argv(words: tuple[str, ...], host: str) -> tuple[str, ...]:
        here = str(directory / caller.PROGRAM)
        return tuple(here if word == _PROGRAM and plan.is_like_here(host) else word for word in words)

    tasks = tuple(task._replace(argv=argv(task.argv, task.host)) for task in plan.tasks)
    return plan._replace(tasks=tasks, function=str(directory))


# ---- sending


class Call:
    """A pickled function with its arguments."""

    def __init__(self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Pickle a function and its arguments.

        Raises:
            TflaunchError: they cannot be pickled, or cloudpickle is not installed.
        """
        self._name = name_of(function)
        self._cloudpickle = _import_cloudpickle()
        try:
            with _by_value(self._cloudpickle, function):
                self._data = self._cloudpickle.dumps((function, tuple(args), dict(kwargs)))
        except Exception as error:
            message = f"{self._name} cannot be sent to the tasks: {error}; create what cannot be pickled inside of it"
            raise TflaunchError(message, EXIT_USAGE) from error

    def write(self, directory: Path) -> None:
        """Write everything that a task needs to call it into a new directory.

        Raises:
            OSError: there is no room for it.
        """
        directory.mkdir(mode=0o700)
        shutil.copyfile(caller.__file__, directory / caller.PROGRAM)
        package = Path(self._cloudpickle.__file__ or "").parent
        shutil.copytree(package, directory / package.name, ignore=shutil.ignore_patterns("__pycache__"))
        about = {"name": self._name, "python": list(sys.version_info[:2])}
        (directory / caller.ABOUT).write_text(json.dumps(about))
        (directory / caller.SEARCHED).write_text(json.dumps([os.path.abspath(path) for path in sys.path]))
        (directory / caller.CALL).write_bytes(self._data)


def _import_cloudpickle() -> ModuleType:
    try:
        import cloudpickle
    except ImportError:
        message = "functions are sent with cloudpickle, which is not installed here; pip install cloudpickle"
        raise TflaunchError(message, EXIT_USAGE) from None
    module: ModuleType = cloudpickle
    return module


@contextmanager
def _by_value(cloudpickle: Any, function: Callable[..., Any]) -> Iterator[None]:
    """Pickle the module of a function by value, unless it is installed: hosts may lack the user's own modules."""
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    with _pickling:
        known = cloudpickle.list_registry_pickle_by_value()
        if module is None or _is_installed(module) or module.__name__ in known:
            yield
            return
        cloudpickle.register_pickle_by_value(module)
        try:
            yield
        finally:
            cloudpickle.unregister_pickle_by_value(module)


def _is_installed(module: ModuleType) -> bool:
    """Whether a module is part of Python or of an installed package."""
    path = getattr(module, "__file__", None)
    if path is None or Path(sysconfig.get_path("stdlib")) in Path(path).parents:
        return True
    return not {"site-packages", "dist-packages"}.isdisjoint(Path(path).parts)


# ---- receiving


class Values(Mapping[str, Any]):
    """What the tasks of a run returned, by task; each value is unpickled when it is first used."""

    def __init__(self, outcomes: Mapping[str, Path]) -> None:
        """Find the values in the files of ``outcomes``, task to the file of its last attempt."""
        self._paths = {task: path for task, path in outcomes.items() if _head_of(path).get("kind") == "returned"}
        self._loaded: dict[str, Any] = {}

    def __getitem__(self, task: str) -> Any:
        """Return what a task returned.

        Raises:
            KeyError: it has not returned anything.
            TflaunchError: what it returned cannot be unpickled here.
        """
        path = self._paths[task]
        if task not in self._loaded:
            try:
                self._loaded[task] = _unpickle(path)
            except Exception as error:
                message = (
                    f"what {task} returned cannot be used here: {error}; return plain data, or install what it needs"
                )
                raise TflaunchError(message, EXIT_INTERNAL) from error
        return self._loaded[task]

    def __iter__(self) -> Iterator[str]:
        return iter(self._paths)

    def __len__(self) -> int:
        return len(self._paths)

    def __repr__(self) -> str:
        return f"<tflaunch values of {', '.join(self._paths) or 'no task'}>"


def raised_in(path: Path) -> tuple[Exception | None, str]:
    """Return the exception in the file of an outcome, None if it cannot be unpickled here, and its traceback's text."""
    about = _head_of(path)
    if about.get("kind") != "raised" or not isinstance(about.get("traceback"), str):
        return None, ""
    try:
        error = _unpickle(path)
    except Exception:  # noqa: BLE001 - what unpickles itself can raise anything
        error = None
    return error if isinstance(error, Exception) else None, about["traceback"]


def _head_of(path: Path) -> dict[str, Any]:
    """Return the first line of the file of an outcome, {} if there is none."""
    try:
        with path.open("rb") as file:
            about = wire.parse(file.readline(_MOST_HEAD))
    except (OSError, ValueError):
        return {}
    return about if isinstance(about, dict) else {}


def _unpickle(path: Path) -> Any:
    """Return the value or exception in the file of an outcome; can raise anything."""
    with path.open("rb") as file:
        file.readline(_MOST_HEAD)
        return pickle.load(file)  # noqa: S301 - documented
