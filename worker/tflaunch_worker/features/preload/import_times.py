"""Times of TensorFlow imports in tasks, from stack samples twice a second."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Callable, NamedTuple, Sequence

from tflaunch_worker import procfs, program_source
from tflaunch_worker.features import python_stacks
from tflaunch_worker.features.preload import source_checks
from tflaunch_worker.features.python_runtime import UnreadableError
from tflaunch_worker.inspect import interpreter

if TYPE_CHECKING:
    from tflaunch_worker.event_loop import Loop

_INTERVAL = 0.5  # seconds
_MOST_LOOKS = 240
_LOOKS_AFTER = 2  # what has not imported for so long has ended its imports, but for a module here and there
_IMPORTER = "<frozen importlib._bootstrap>"
_PACKAGES = ("/tensorflow/", "/keras/")


class Look(NamedTuple):
    """A sample of a process: time and CPU time in seconds, and whether it imports."""

    at: float
    cpu: float
    imports: bool


class ImportTimes:
    """A sampler of processes until their TensorFlow import, their end, or two minutes."""

    def __init__(self, loop: Loop, pids: dict[str, int], done: Callable[[dict[str, list[Look]]], None]) -> None:
        """Begin; calls ``done`` with what was seen of each process, the first look first."""
        self._loop = loop
        self._left = dict(pids)
        self._readers: dict[int, python_stacks.PythonProcess] = {}
        self._seen: dict[str, list[Look]] = {name: [] for name in pids}
        self._done = done
        self._timer = loop.call_at(loop.now(), self._look)

    def cancel(self) -> None:
        """Look no more; ``done`` is not called."""
        self._timer.cancel()
        self._left.clear()
        self._close_unused()

    def _look(self) -> None:
        for name, pid in list(self._left.items()):
            cpu = procfs.cpu_time(pid)
            if cpu is None or has_imported(self._seen[name]) or len(self._seen[name]) == _MOST_LOOKS:
                del self._left[name]
            else:
                self._seen[name].append(Look(self._loop.now(), cpu, self._is_importing(pid)))
        self._close_unused()
        if self._left:
            self._timer = self._loop.call_at(self._loop.now() + _INTERVAL, self._look)
        else:
            self._done(self._seen)

    def _is_importing(self, pid: int) -> bool:
        try:
            if pid not in self._readers:
                self._readers[pid] = python_stacks.PythonProcess(pid)
            threads = self._readers[pid].read_threads()
        except UnreadableError:
            return False  # its interpreter has not begun yet, or has ended
        files = [frame.file for frame in threads[0].frames] if threads else []
        return _IMPORTER in files and any(package in file for file in files for package in _PACKAGES)

    def _close_unused(self) -> None:
        for pid in self._readers.keys() - set(self._left.values()):
            self._readers.pop(pid).close()


def has_imported(looks: Sequence[Look]) -> bool:
    """Return whether a process has imported TensorFlow, and seems done with it."""
    return any(look.imports for look in looks) and not any(look.imports for look in looks[-_LOOKS_AFTER:])


def span(looks: Sequence[Look]) -> tuple[float, float] | None:
    """Return the duration and the CPU time of an import; None if none was sampled.

    It began somewhere between two looks, and so it ended: the middles are taken.
    """
    places = [place for place, look in enumerate(looks) if look.imports]
    if not places:
        return None
    first, last = places[0], places[-1]
    begin = looks[max(first - 1, 0)], looks[first]
    end = looks[last], looks[min(last + 1, len(looks) - 1)]
    return _middle(end, 0) - _middle(begin, 0), _middle(end, 1) - _middle(begin, 1)


def _middle(looks: tuple[Look, Look], field: int) -> float:
    return (looks[0][field] + looks[1][field]) / 2


def why_not_forked(pid: int) -> str:
    """Name an obstacle to forking a process that its program has; "" for none."""
    argv = (procfs.read(f"/proc/{pid}/cmdline") or "").split("\0")[:-1]
    entries = (entry.decode("utf-8", "replace").partition("=") for entry in procfs.environment_of(pid))
    env = {name: value for name, _, value in entries}
    reason = program_source.check_command(argv)
    if reason:
        return reason
    path = interpreter.package_directories(interpreter.find_python(argv[0], env), env)
    try:
        workdir = os.readlink(f"/proc/{pid}/cwd")
    except OSError as error:  # it has just ended, or has changed its user
        return f"its working directory cannot be read: {error.strerror}"
    python_path = source_checks.own_places(env.get("PYTHONPATH", ""), workdir)
    return source_checks.check_source(argv, workdir, python_path, path, env)[0]
