"""The list of all runs, for a page that asks for it again and again."""

import os
from pathlib import Path

from tflaunch.client.run_list import Listing, RunEntry, entry_of
from tflaunch.store import run_dir


class RememberedRuns:
    """Lists all runs, and reads journals of those that have ended only if they have changed."""

    def __init__(self) -> None:
        self._known: dict[Path, tuple[tuple[int, ...], RunEntry]] = {}

    def overview(self) -> Listing:
        """Return the overview of all runs."""
        before, self._known = self._known, {}
        return [self._entry_of(path, before.get(path)) for path in run_dir.newest_first()]

    def _entry_of(self, path: Path, known: tuple[tuple[int, ...], RunEntry] | None) -> RunEntry:
        try:
            written = os.stat(path / run_dir.JOURNAL_NAME)
        except OSError:
            return entry_of(path)
        mark = (written.st_ino, written.st_size, written.st_mtime_ns)
        entry = known[1] if known is not None and known[0] == mark else entry_of(path)
        if entry.ended is not None:
            self._known[path] = mark, entry
        return entry
