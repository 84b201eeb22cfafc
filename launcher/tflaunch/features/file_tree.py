"""Measure and delete directories that may hold links, files of others, mounts."""

import os
from contextlib import suppress
from pathlib import Path

from tflaunch import private_files
from tflaunch.client.run_location import locate_run
from tflaunch.errors import EXIT_INTERNAL, TflaunchError
from tflaunch.store import run_dir
from tflaunch_worker import file_trees

TRASH = ".pruned-"
"""Prefix of a run that is being removed, which hides it from all other commands."""


def is_directory(path: Path) -> bool:
    """Return whether this is a directory itself, not a link to one."""
    return path.is_dir() and not path.is_symlink()


def last_change(run: Path) -> float:
    """Return when a run was last changed, not only read, in seconds since 1970."""
    if run.name.startswith(TRASH):
        return run.lstat().st_mtime
    changed_by_looking = (run_dir.LOCK_NAME, *locate_run(run).changed_by_looking)
    files = [entry for entry in run.glob("*") if not is_directory(entry)]
    entries = [*files, *run.glob("agents/*/*"), *run.glob("logs/*")]
    times = []
    for entry in entries:
        if not entry.name.startswith(changed_by_looking):
            with suppress(FileNotFoundError):  # its supervisor, or a command, has just replaced it
                times.append(entry.lstat().st_mtime)
    return max(times) if times else run.lstat().st_mtime


def delete_tree(path: Path) -> None:
    """Remove a directory with everything in it; links in it are removed, not followed.

    Raises:
        TflaunchError: something in it cannot be removed; the next prune tries again.
    """
    with suppress(FileNotFoundError):  # another process removes it, too
        tree_size(path, repairs=True)
    error = file_trees.remove_tree(str(path))
    if error is not None:
        raise TflaunchError(f"{error.filename} cannot be removed: {error.strerror}", EXIT_INTERNAL)


def tree_size(path: Path, repairs: bool = False) -> int:
    """Return a directory's bytes on the disk; ``repairs``: make it writable for us.

    A directory that cannot be read counts nothing.

    Raises:
        TflaunchError: something in it belongs to another user, or is another file system.
    """
    device, user = path.lstat().st_dev, os.geteuid()
    sizes: dict[int, int] = {}

    def check(entry: file_trees.Entry) -> bool:
        status = entry.status()
        if status.st_uid != user:
            owner = private_files.user_name(status.st_uid)
            raise TflaunchError(f"{path}/{entry.path} belongs to {owner}; remove it by hand", EXIT_INTERNAL)
        if status.st_dev != device:
            raise TflaunchError(f"a file system is mounted at {path}/{entry.path}; unmount it", EXIT_INTERNAL)
        sizes[status.st_ino] = status.st_blocks * 512
        return file_trees.make_writable(entry.name, entry.directory) if repairs else True

    if repairs:
        file_trees.make_writable(str(path))
    try:
        for entry in file_trees.walk(str(path), check):
            if not entry.is_directory:
                check(entry)
    except PermissionError:
        return 0
    return sum(sizes.values())


def delete_run(path: Path) -> None:
    """Delete the directory of a run whose lock we hold, or the link to it, at once.

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
