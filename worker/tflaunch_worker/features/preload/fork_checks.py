"""Check, before each fork, that the zygote and the program allow it.

A fork is only safe while the main thread is the only one, and TensorFlow is not fork-safe once it has run something
(tensorflow/tensorflow#2448, #5448).
"""

from __future__ import annotations

import importlib.machinery
import os
import sys
from typing import Any, Mapping, Sequence

from tflaunch_worker.features import program_source
from tflaunch_worker.features.preload import source_checks

_OWN_PACKAGE = __name__.partition(".")[0]
_DEVICES = ("/dev/nvidia", "/dev/kfd", "/dev/dri")


def find_modules(argv: list[str], workdir: str, environ: Mapping[str, str]) -> tuple[list[str], str]:
    """Return the modules a program imports first, or [] and why that is uncertain."""
    own = source_checks.own_places(os.environ.get("PYTHONPATH", ""), workdir)
    found, reason = source_checks.find_slow_imports(argv, workdir, own, sys.path, environ)
    return list(found), reason


def check_program(
    request: dict[str, Any], modules: list[str], modules_before: set[str], added: list[str], watch: ImportWatch
) -> tuple[str, set[str]]:
    """Return the reason against a fork of a task, or "", and the packages it imports.

    ``request`` is for a fork (see `zygote_client`). ``modules`` were imported, and ``modules_before`` are those that
    this process needs for itself. ``added`` are directories at the end of ``sys.path`` that are not the interpreter's.
    """
    argv, workdir = request["argv"], request["workdir"]
    reason = reason_in_process(watch.started_by)
    if reason:
        return reason, set()
    python_path = source_checks.own_places(os.environ.get("PYTHONPATH", ""), os.getcwd())
    if request["is_function"]:
        return _check_function(request, modules_before, [workdir, *python_path, *added], watch.searched)
    kind, index = program_source.find_program(argv) or ("", 0)
    if request["is_auto"]:
        found, reason = find_modules(argv, workdir, request["env"])
        reason, imported = reason if found == modules else "its program imports something else first", set(found)
    else:
        reason, imported = source_checks.check_source(argv, workdir, python_path, sys.path, request["env"])
    name, directory = argv[index], workdir
    is_package = hasattr(sys.modules.get(name), "__path__")  # then its __main__ is the program
    if kind == program_source.MODULE and (
        (name in sys.modules and not is_package) or f"{name}.__main__" in sys.modules
    ):
        reason = reason or f"{name} itself has been imported"
    if kind == program_source.SCRIPT:
        directory = os.path.dirname(os.path.realpath(os.path.join(workdir, name)))
    return reason or _reason_in_directory(directory, modules_before, watch.searched), imported


def _check_function(
    request: dict[str, Any], modules_before: set[str], roots: list[str], searched: set[str]
) -> tuple[str, set[str]]:
    """Check a program that calls a function, which imports modules from ``roots``."""
    program = program_source.find_program(request["argv"])
    assert program is not None
    directory = os.path.dirname(request["argv"][program[1]])
    path = [os.path.realpath(request["workdir"]), *sys.path]
    reason, imported = source_checks.check_function(directory, roots, path, request["env"])
    # Each of these directories is the first in sys.path for some time. The cloudpickle in ours may be imported already.
    reason = reason or _reason_in_directory(directory, modules_before, searched, may_copy=True)
    return reason or _reason_in_directory(request["workdir"], modules_before, searched), imported


class ImportWatch:
    """An importer that only notes the searched names, and modules that start threads."""

    def __init__(self) -> None:
        self.started_by: list[str] = []
        self.searched: set[str] = set()
        """Also what was not found, which a task may have: TensorFlow tries to import ``python.runfiles``."""
        self._threads = _count_threads()
        self._begun: list[str] = []

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        """Look, note that this import begins, and find nothing."""
        self.look()
        self._begun.append(name)
        self.searched.add(name)

    def look(self) -> None:
        """Blame new threads on the innermost ongoing import, or the outermost ended one."""
        ended = ""
        while self._begun and not _is_importing(self._begun[-1]):
            ended = self._begun.pop()
        threads = _count_threads()
        if threads > self._threads:
            self.started_by.append(self._begun[-1] if self._begun else ended)
        self._threads = threads


def _is_importing(name: str) -> bool:
    return bool(getattr(getattr(sys.modules.get(name), "__spec__", None), "_initializing", False))


def _count_threads() -> int:
    return os.stat("/proc/self/task").st_nlink  # two more, but quicker than a list, as every import asks


def reason_in_process(started_by: Sequence[str] = ()) -> str:
    """Return why this process must not be forked, or "" if it may.

    ``started_by``: the modules whose import has started threads.
    """
    threads = len(os.listdir("/proc/self/task"))
    if threads != 1:
        what = f"has started {'a thread' if threads == 2 else f'{threads - 1} threads'}, which a fork would lack"
        if not started_by:
            return f"something {what}"
        modules = " and ".join(dict.fromkeys(started_by[:2]))
        return f"importing {modules} {what}; leave it out, or run without preload"
    for number in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{number}")
        except OSError:
            continue  # the descriptor of the listing itself
        if target.startswith(_DEVICES):
            return f"the modules have opened {target}"
    context = sys.modules.get("tensorflow.python.eager.context")
    if getattr(context, "_context", None) is not None:
        return "the modules have made TensorFlow run something"
    return ""


def _reason_in_directory(directory: str, modules_before: set[str], searched: set[str], may_copy: bool = False) -> str:
    """Return why imports would differ in a program's directory; "" if they would not.

    It is the first place in which the program looks for modules. ``searched``: all names that were looked for;
    ``may_copy``: a module that has the same files as the imported one is allowed.
    """
    if getattr(sys.flags, "safe_path", False):
        return ""
    try:
        names = os.listdir(directory)
    except OSError:
        return ""  # the start of the task reports it
    suffixes = importlib.machinery.all_suffixes()
    for name in names:
        stem = name.partition(".")[0]
        module = sys.modules.get(stem)
        if module is None and stem not in searched:
            continue
        if stem in sys.builtin_module_names or stem in ("__main__", _OWN_PACKAGE):
            continue
        path = os.path.join(directory, name)
        is_module = any(name == stem + suffix for suffix in suffixes)
        is_package = name == stem and any(os.path.exists(os.path.join(path, "__init__" + end)) for end in suffixes)
        origin = getattr(module, "__file__", None) or os.devnull
        is_elsewhere = not os.path.realpath(origin).startswith(os.path.realpath(path))
        if (is_module or is_package) and is_elsewhere and not (may_copy and _is_copy(path, origin)):
            if module is None:
                why = "what was imported had looked for one"
            elif stem in modules_before:
                why = "preloading needs it, too"
            else:
                why = "it would hide the one that was imported"
            return f"its directory has a module {stem} of its own: {why}"
    return ""


def _is_copy(path: str, origin: str) -> bool:
    """Whether a module or package has the same files as the imported one."""
    pairs = [(path, origin)]
    try:
        if os.path.isdir(path):
            there = os.path.dirname(origin)
            names = [name for name in os.listdir(path) if name != "__pycache__"]
            pairs = [(os.path.join(path, name), os.path.join(there, name)) for name in names]
        return all(_content(one) == _content(other) for one, other in pairs)
    except OSError:
        return False  # it has a directory, for instance


def _content(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()
