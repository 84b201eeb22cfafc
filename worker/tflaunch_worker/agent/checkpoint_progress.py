"""Find the checkpoints that a failed attempt has written, by their file names.

Training programs write checkpoints anywhere; searched are the directories named in the task's command, its working
directory and its private directory. A file overwritten under the same name does not show progress, so the number
in the name counts, as in ``ckpt-120.index`` or ``epoch_07.weights.h5``.
"""

from __future__ import annotations

import os
import re
import time
from typing import Callable

from tflaunch_worker import offload
from tflaunch_worker.event_loop import Loop

_ENDINGS = (".ckpt.index", ".index", ".weights.h5", ".h5", ".hdf5", ".keras", ".ckpt")
_DECIMALS = r"\d+\.\d+"  # ModelCheckpoint may put the loss into the file name
_NUMBER = r"\d{1,15}(?!.*\d)"
_DEEPEST = 4
_MOST_ENTRIES = 5000
_LONGEST = 1.0  # seconds of searching
_PATIENCE = 3.0  # seconds; a slower file system is taken to hang, so that the restart can go ahead
_CLOCKS = 2.0  # seconds by which a file server's clock may lag


class Finder:
    """Searches in a fork, as file systems may hang; tasks that fail together share it."""

    def __init__(self, loop: Loop, own: str) -> None:
        """Also search below ``own``, which holds the tasks' private directories."""
        self._loop = loop
        self._own = own
        self._waiting: dict[tuple[str, ...], list[Callable[[int], None]]] = {}

    def find(self, argv: list[str], workdir: str, since: float, found: Callable[[int], None]) -> None:
        """Call ``found`` within 3 s with the highest number of its checkpoints, or 0.

        ``since``: when the command was started, in seconds since the epoch.
        """
        about = (workdir, *argv)
        waiting = self._waiting.setdefault(about, [])
        waiting.append(found)
        if len(waiting) > 1:
            return

        def answer(number: int | None) -> None:
            timer.cancel()
            give_up()
            del self._waiting[about]
            for call in waiting:
                call(number or 0)

        look = lambda: newest(directories(argv, workdir, self._own), since - _CLOCKS)  # noqa: E731
        _, give_up = offload.run_in_fork(self._loop, look, answer)
        timer = self._loop.call_at(self._loop.now() + _PATIENCE, lambda: answer(0))


def directories(argv: list[str], workdir: str, own: str) -> list[str]:
    """Return the directories in which a task may write checkpoints.

    In ``argv``, ``--model_dir=state`` and ``state`` name one relative to ``workdir``. ``own`` has those of all tasks.
    """
    named = [word.partition("=")[2] if word.startswith("-") else word for word in argv[1:]]
    paths = [os.path.join(workdir, os.path.expanduser(name)) for name in named if name and len(name) < 1000]
    found = [os.path.realpath(path) for path in (workdir, own, *paths) if "\0" not in path and os.path.isdir(path)]
    return [path for path in dict.fromkeys(found) if path != "/"]


def is_checkpoint(name: str) -> int:
    """Return 1 for the name of a checkpoint's file, with or without a number."""
    return int(name.endswith(_ENDINGS))


def newest(roots: list[str], since: float, number_in: Callable[[str], int] | None = None) -> int:
    """Return the highest number of a checkpoint written since ``since``; 0 for none.

    Searched are at most 5,000 entries, four levels deep, for one second. ``since`` is in seconds since the epoch, by
    this host's clock; ``number_in`` returns the number in a file's name, by default as `number_of`.
    """
    number_in = number_in or number_of
    ends_at = time.monotonic() + _LONGEST
    highest, looked_at = 0, 0
    waiting = [(root, 0) for root in roots]
    while waiting:
        path, depth = waiting.pop(0)
        try:
            entries = os.scandir(path)
        except OSError:
            continue
        with entries:
            for entry in entries:
                looked_at += 1
                if looked_at > _MOST_ENTRIES or time.monotonic() > ends_at:
                    return highest
                try:
                    if entry.is_dir(follow_symlinks=False):
                        if depth < _DEEPEST and not entry.name.startswith("."):
                            waiting.append((entry.path, depth + 1))
                    elif (number := number_in(entry.name)) > highest and entry.stat().st_mtime >= since:
                        highest = number
                except OSError:
                    continue
    return highest


def number_of(name: str) -> int:
    """Return the number in a checkpoint's file name, or 0 for any other file."""
    for ending in _ENDINGS:
        if name.endswith(ending):
            found = re.search(_NUMBER, re.sub(_DECIMALS, "", name[: -len(ending)]))
            return int(found[0]) if found else 0
    return 0
