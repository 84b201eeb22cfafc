"""Functions as tasks: what is sent to the tasks, and what they returned or raised."""

import builtins
import io
import json
import os
import pickle
import re
import shutil
import sys
import sysconfig
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from tflaunch.errors import EXIT_INTERNAL, EXIT_USAGE, TflaunchError
from tflaunch.feature import task_starters
from tflaunch.install_command import command_for_extra
from tflaunch.plan.model import FUNCTION_PROGRAM
from tflaunch_worker import function as caller
from tflaunch_worker import wire
from tflaunch_worker.readable import printable

_MOST_HEAD = 1024 * 1024  # bytes
_pickling = threading.Lock()  # which modules are pickled by value is a setting of the whole process


def spec_of(function: Callable[..., Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the spec whose tasks call a function; ``command`` is the interpreter."""
    name = re.sub(r"[^A-Za-z0-9._-]", "", name_of(function)).lstrip("._-")[:63]
    python = fields.get("command", "python3")
    interpreter = [python] if isinstance(python, str) else list(python)
    defaults = {"name": name or "function", "sync": {"paths": []}}
    return {**defaults, **fields, "command": [*interpreter, FUNCTION_PROGRAM]}


def name_of(function: Callable[..., Any]) -> str:
    """Return the name of a function, or of the type of another callable."""
    return str(getattr(function, "__name__", type(function).__name__))


# ---- sending


class Call:
    """A pickled function with its arguments."""

    def __init__(self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Pickle a function and its arguments.

        Raises:
            TflaunchError: they cannot be pickled, or cloudpickle is not installed.
        """
        self.searched = [
            os.path.abspath(entry)
            for entry in sys.path
            if os.path.isabs(entry) or os.path.exists(entry or os.curdir)  # editable installs add names of other things
        ]
        """The directories in which this program searches modules."""
        self._name = name_of(function)
        self._cloudpickle = _import_cloudpickle()
        with _by_value(self._cloudpickle, function):
            try:
                self._data, sent = _pickle(self._cloudpickle, (function, tuple(args), dict(kwargs)))
            except Exception as error:
                what = f"{self._name} cannot be sent to the tasks: {error}"
                raise TflaunchError(f"{what}; create what cannot be pickled inside of it", EXIT_USAGE) from error
            self._known: dict[str, object] = {"name": self._name, "python": list(sys.version_info[:2])}
            for starter in task_starters():
                self._known.update(starter.describe_function(self._name, sent, self._data))

    def write(self, directory: Path) -> None:
        """Write what tasks need to call it into a new directory, or raise TflaunchError."""
        package = Path(self._cloudpickle.__file__ or "").parent
        try:
            directory.mkdir(mode=0o700)
            shutil.copyfile(caller.__file__, directory / caller.PROGRAM)
            shutil.copytree(package, directory / package.name, ignore=shutil.ignore_patterns("__pycache__"))
            (directory / caller.ABOUT).write_text(json.dumps(self._known))
            (directory / caller.SEARCHED).write_text(json.dumps(self.searched))
            (directory / caller.CALL).write_bytes(self._data)
        except OSError as error:
            raise TflaunchError(f"{directory}: {error.strerror}", EXIT_INTERNAL) from None


def _import_cloudpickle() -> ModuleType:
    try:
        import cloudpickle
    except ImportError:
        message = f"functions are sent with cloudpickle, which is not installed here: {command_for_extra('functions')}"
        raise TflaunchError(message, EXIT_USAGE) from None
    module: ModuleType = cloudpickle
    return module


def _pickle(cloudpickle: Any, value: object) -> tuple[bytes, list[FunctionType]]:
    """Return a value pickled, and the functions in it that are pickled by value."""
    sent: list[FunctionType] = []

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle has no types
        def reducer_override(self, value: object) -> Any:
            reduced = super().reducer_override(value)
            if isinstance(value, FunctionType) and reduced is not NotImplemented:
                sent.append(value)
            return reduced

    file = io.BytesIO()
    Pickler(file).dump(value)
    return file.getvalue(), sent


@contextmanager
def _by_value(cloudpickle: Any, function: Callable[..., Any]) -> Iterator[None]:
    """Pickle a function's module by value if hosts may lack it: it is not installed."""
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
    """What the tasks of a run returned, by task; values are unpickled at first use."""

    def __init__(self, outcomes: Mapping[str, Path], trusted: Collection[str] = ()) -> None:
        """Find the values in files, without unpickling them.

        Args:
            outcomes: task to the file of its last attempt, with what its function returned or raised.
            trusted: the tasks whose files may execute code here; those of others are read as plain data.
        """
        self._outcomes = outcomes
        self._trusted = trusted
        self._paths = {task: path for task, path in outcomes.items() if _head_of(path).get("kind") == "returned"}
        self._loaded: dict[str, Any] = {}

    def __getitem__(self, task: str) -> Any:
        """Return the value that a task returned.

        Raises:
            KeyError: it has not returned anything.
            TflaunchError: what it returned cannot be unpickled here.
        """
        path = self._paths[task]
        if task not in self._loaded:
            try:
                self._loaded[task] = self._unpickle(task, path)
            except Exception as error:
                remedy = "install what it needs" if task in self._trusted else "pass trust_hosts=True (see SECURITY.md)"
                message = f"what {task} returned cannot be used here: {error}; return plain data, or {remedy}"
                raise TflaunchError(message, EXIT_INTERNAL) from error
        return self._loaded[task]

    def __iter__(self) -> Iterator[str]:
        return iter(self._paths)

    def __len__(self) -> int:
        return len(self._paths)

    def __repr__(self) -> str:
        return f"<tflaunch values of {', '.join(self._paths) or 'no task'}>"

    def raised_by(self, task: str) -> tuple[Exception | None, str]:
        """Return a task's exception, None if it cannot be unpickled, and its traceback."""
        path = self._outcomes.get(task)
        about = {} if path is None else _head_of(path)
        if path is None or about.get("kind") != "raised" or not isinstance(about.get("traceback"), str):
            return None, ""
        try:
            error = self._unpickle(task, path)
        except Exception:  # noqa: BLE001 - what unpickles itself can raise anything
            error = None
        return error if isinstance(error, Exception) else None, "\n".join(
            printable(line) for line in about["traceback"].splitlines()
        )

    def _unpickle(self, task: str, path: Path) -> Any:
        """Return the value or exception in the file of an outcome; can raise anything."""
        with path.open("rb") as file:
            file.readline(_MOST_HEAD)
            return (pickle.Unpickler if task in self._trusted else _PlainUnpickler)(file).load()


class _PlainUnpickler(pickle.Unpickler):
    """Unpickles plain data and Python's own exceptions, and executes no code."""

    def find_class(self, module: str, name: str) -> Any:
        """Return the class of an exception; other callables could execute code here."""
        found = getattr(builtins, name, None) if module == "builtins" else None
        if found is complex or (isinstance(found, type) and issubclass(found, Exception)):
            return found
        raise pickle.UnpicklingError(f"it is from another machine and has a {f'{module}.{name}'[:200]!r}")


def _head_of(path: Path) -> dict[str, Any]:
    """Return the first line of the file of an outcome, {} if there is none."""
    try:
        with path.open("rb") as file:
            about = wire.parse(file.readline(_MOST_HEAD))
    except (OSError, ValueError):
        return {}
    return about if isinstance(about, dict) else {}
