"""Files that are fetched in parts, each continued where an earlier one stopped."""

import os
from pathlib import Path

from tflaunch import private_files
from tflaunch_worker.features.file_parts import ArrivingFile, unlink_if_there

_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
_READ = 1 << 20


class FetchedFile(ArrivingFile):
    """What has arrived of a file whose content has a known hash."""

    def __init__(self, path: Path, sha256: str) -> None:
        """Take up what is at a path.

        Raises:
            OSError: it cannot be read or created.
        """
        super().__init__(str(path))
        self._wanted = sha256
        private_files.make_directories(path.parent)
        with open(os.open(path, _FLAGS, 0o600), "rb") as file:
            while data := file.read(_READ):
                self.sha256.update(data)
                self.size += len(data)

    def is_intact(self) -> bool:
        """Return whether all of it has arrived; remove a file with another content."""
        if self.sha256.hexdigest() == self._wanted:
            return True
        unlink_if_there(self.path)
        return False
