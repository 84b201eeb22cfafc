"""Measure and delete directories that may hold what others have put there: links, files of others, mounts."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

from tflaunch import private_files
from tflaunch.errors import EXIT_INTERNAL, TflaunchError

TRASH = ".pruned-"
"""Prefix of a run that is being removed, which hides it from all other commands."""


def is_directory(path: Path) -> bool:
    """Return whether this is a directory itself, not a link to one."""
    return path.is_dir() and not path.is_symlink()


def delete_tree(path: Path) -> None:
    """Remove a directory with everything in it; links in it are removed, not followed.

    Raises:
        TflaunchError: something in it cannot be removed; the next prune tries again.
    """
    try:
        tree_size(path, repairs=True)
        shutil.rmtree(path)
    except OSError as error:
        raise TflaunchError(f"{error.filename or path} cannot be removed: {error.strerror}", EXIT_INTERNAL) from None


def tree_size(path: Path, repairs: bool = False) -> int:
    """Return the bytes of a directory on the disk; with ``repairs``, make its directories writable for us.

    A directory that cannot be read counts nothing.

    Raises:
        TflaunchError: something in it belongs to another user, or is another file system.
    """
    device, user = path.lstat().st_dev, os.geteuid()
    total, seen, directories = 0, set(), [str(path)]
    while directories:
        for entry in _entries(directories.pop(), repairs):
            status = entry.stat(follow_symlinks=False)
            if status.st_uid != user:
                owner = private_files.user_name(status.st_uid)
                raise TflaunchError(f"{entry.path} belongs to {owner}; remove it by hand", EXIT_INTERNAL)
            if status.st_dev != device:
                raise TflaunchError(f"a file system is mounted at {entry.path}; unmount it", EXIT_INTERNAL)
            if status.st_ino not in seen:
                seen.add(status.st_ino)
                total += status.st_blocks * 512
            if stat.S_ISDIR(status.st_mode):
                directories.append(entry.path)
    return total


def _entries(directory: str, repairs: bool) -> list[os.DirEntry[str]]:
    if repairs and stat.S_IMODE(os.lstat(directory).st_mode) & 0o700 != 0o700:
        os.chmod(directory, 0o700)  # a task may have made its directories read-only
    try:
        with os.scandir(directory) as entries:
            return list(entries)
    except PermissionError:
        if repairs:
            raise
        return []


def delete_run(path: Path) -> None:
    """Delete the directory of a run whose lock we hold, or the link to it; no command sees half of it.

    Raises:
        OSError: it cannot be renamed.
        TflaunchError: it cannot be deleted; the next prune tries again.
    """
    if path.is_symlink():
        path.unlink()  # what is in it belongs to another TFLAUNCH_HOME
        return
    tree_size(path, repairs=True)
    trash = path.with_name(f"{TRASH}{path.name}")
    path.rename(trash)
    delete_tree(trash)
