"""Create, open, lock and list run directories, and name the files in them.

A run's name is JOB-YYYYMMDD-HHMMSS-DIGITS.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from tflaunch import private_files
from tflaunch.errors import EXIT_INTERNAL, EXIT_USAGE, TflaunchError, describe_os_error
from tflaunch_worker import boot, file_trees, linux

LOCK_NAME = "lock"
"""The lock file, which the supervisor holds: the kernel releases it when the process ends, for whatever reason."""
JOURNAL_NAME = "events.jsonl"
"""The journal."""
RESERVE_NAME = "reserve"
"""Disk space kept for the last records, until the run has ended."""
SOCKET_NAME = "control.sock"
"""The socket on which the supervisor answers other processes of this user."""
CHECKPOINTS_NAME = "checkpoints"
"""Name of the directory for copies of checkpoints."""
PARTS_NAME = ".parts"
"""Name of the directory for parts of copies that are being fetched."""
FUNCTION_NAME = "function"
"""The directory with the function that the tasks call, if they call one."""
SUPERVISOR_LOG = "supervisor.log"
"""The log of a detached supervisor's messages."""
RECORD_NAME = "record.json"
"""What a run was made of: code, packages, interpreter and machine."""
PATCH_NAME = "code.patch"
"""The changes of the code since the commit that the record names."""
HISTORY_NAME = "history.jsonl"
"""What the tasks used and reported over time."""
LEFT_FILES_NAME = "files"
"""The directory for files that its tasks have left."""
COLLECTED_NAME = "collected"
"""The directory for files fetched from working directories."""
PROFILES_NAME = "profiles/python"
"""The directory for profiles of tasks."""
_PARTS = 4  # of a run's name: job, date, time, random digits


def home() -> Path:
    """Return the directory for all of tflaunch's files, as $TFLAUNCH_HOME says.

    Raises:
        TflaunchError: the directory exists, and another user could have put files into it.
    """
    path = Path(boot.own_directory(is_given=True)).absolute()
    _require_own(path, is_base=True)
    return path


def runs_directory() -> Path:
    """Return the directory that contains all run directories; raises as `home`."""
    return own_directory("runs")


def own_directory(name: str) -> Path:
    """Return a directory in that of all files, which need not exist; raises as `home`."""
    path = home() / name
    _require_own(path)
    return path


def open_run(path: Path) -> Path:
    """Return a run's directory after checking it.

    Raises:
        TflaunchError: the directory does not exist, or another user could have put files into it.
    """
    try:
        private_files.require_own(path)
    except OSError as error:
        raise TflaunchError(f"{path}: {error.strerror}", EXIT_INTERNAL) from None
    return path


def _require_own(path: Path, *, is_base: bool = False) -> None:
    try:
        private_files.require_own(path, is_base=is_base)
    except (FileNotFoundError, NotADirectoryError):
        pass  # created on the first write, which reports any obstacle
    except OSError as error:
        raise TflaunchError(f"{path}: {error.strerror}; set TFLAUNCH_HOME", EXIT_INTERNAL) from None


class RunDirectory:
    """The private directory of one run."""

    def __init__(self, name: str, log_directory: Path | None = None) -> None:
        """Create the directory of a run of the job ``name``; logs are in it by default.

        Raises:
            TflaunchError: the directory cannot be created or belongs to another user.
        """
        runs = home() / "runs"
        try:
            private_files.make_directories(runs)
            private_files.require_own(runs)
            self.path = _make_unique(runs, name)
            try:
                self.run = self.path.name
                self.logs = log_directory.absolute() if log_directory is not None else self.path / "logs"
                private_files.make_directories(self.logs)
                if log_directory is not None:
                    (self.path / "logs").symlink_to(self.logs)
            except BaseException:  # Ctrl-C, too
                self.discard()
                raise
        except OSError as error:
            message = f"{describe_os_error(error)}; set TFLAUNCH_HOME to a directory you can write"
            raise TflaunchError(message, EXIT_INTERNAL) from None

    @classmethod
    def existing(cls, path: Path, logs: Path) -> RunDirectory:
        """Return the directory of an existing run."""
        directory = cls.__new__(cls)
        directory.run, directory.path, directory.logs = path.name, path, logs
        return directory

    @property
    def marks(self) -> Path:
        """The path of the file with the `Marks` of the logs."""
        return self.path / "marks.jsonl"

    @property
    def times(self) -> Path:
        """The path of the directory for the logs' time indices, created when needed."""
        return self.path / "times"

    @property
    def function(self) -> Path:
        """The directory with the function that the tasks call, if they call one."""
        return self.path / FUNCTION_NAME

    def keep_spec(self, suffix: str, data: bytes) -> None:
        """Save the user's spec unchanged; ``suffix`` is that of its file."""
        private_files.write_text(self.path / f"spec{suffix}", data.decode("utf-8", "surrogateescape"))

    def write_plan(self, plan: dict[str, Any]) -> None:
        """Write ``plan.json``."""
        private_files.write_text(self.path / "plan.json", json.dumps(plan, separators=(",", ":")) + "\n")

    def discard(self) -> None:
        """Remove the directory of a run that has not begun, as far as that is possible."""
        file_trees.remove_tree(str(self.path))


def _make_unique(runs: Path, name: str) -> Path:
    while True:
        path = runs / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}-{os.urandom(2).hex()}"
        try:
            path.mkdir(mode=0o700)
        except FileExistsError:
            continue
        except BaseException:  # Ctrl-C in the system call, which has made it: no other process knows the name yet
            with suppress(OSError):
                path.rmdir()
            raise
        return path


def newest_first() -> list[Path]:
    """Return the directories of all runs, newest first.

    Raises:
        TflaunchError: the runs cannot be listed, or another user could have put runs there.
    """
    runs = runs_directory()
    try:
        with os.scandir(runs) as entries:
            directories = (entry for entry in entries if entry.is_dir() and not entry.name.startswith("."))
            found = [(entry.stat().st_mtime_ns, entry.name) for entry in directories]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise TflaunchError(f"{error.filename}: {error.strerror}", EXIT_INTERNAL) from None
    # A run's name contains its start time in seconds, which is more reliable than its directory's mtime.
    return [runs / run for _, run in sorted(found, key=lambda pair: (start_of(pair[1]), pair), reverse=True)]


def newest_of_job(job: str) -> list[Path]:
    """Return the directories of a job's runs, the newest first."""
    return [path for path in newest_first() if job_name(path.name) == job]


def job_name(name: str) -> str:
    """Return the name of a run's job."""
    return _parts(name)[0]


def is_run_name(name: str) -> bool:
    """Return whether this is how `RunDirectory` names runs."""
    return len(_parts(name)) == _PARTS


def start_of(name: str) -> str:
    """Return the date and time in a run's name, "" if there is none."""
    return "".join(_parts(name)[1:3])


def _parts(name: str) -> list[str]:
    """Return job, date, time and digits in a run's name, or the name as one part."""
    parts = name.rsplit("-", 3)
    return parts if len(parts) == _PARTS and "".join(parts[1:3]).isdigit() else [name]


def take_lock(path: Path) -> int:
    """Take a run's lock until the descriptor is closed or this process ends.

    Raises:
        TflaunchError: another supervisor holds the lock, or the file cannot be locked.
    """
    try:
        descriptor = os.open(path / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise TflaunchError(f"{path / LOCK_NAME}: {error.strerror}", EXIT_INTERNAL) from None
    try:
        is_taken = linux.take_lock(descriptor)
    except OSError as error:
        os.close(descriptor)
        message = f"{path / LOCK_NAME} cannot be locked: {error.strerror}; TFLAUNCH_HOME needs a file system with flock"
        raise TflaunchError(message, EXIT_INTERNAL) from None
    if not is_taken:
        os.close(descriptor)
        raise already_supervised(path)
    if not _is_at(descriptor, path / LOCK_NAME):
        os.close(descriptor)
        raise TflaunchError(f"run {path.name} has just been removed", EXIT_USAGE)
    return descriptor


def _is_at(descriptor: int, path: Path) -> bool:
    """Return whether an open file is still the one at a path."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    except FileNotFoundError:
        return False


def is_locked(path: Path) -> bool:
    """Return whether a supervisor holds a run's lock, without keeping the lock."""
    return linux.is_lock_free(str(path / LOCK_NAME)) is False


def wait_for_end(path: Path) -> None:
    """Wait for the exit of a run's supervisor, which reports the run's end before it."""
    with suppress(OSError), (path / LOCK_NAME).open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)  # no limit: the end of a run is awaited


def already_supervised(path: Path) -> TflaunchError:
    """Return the error of a second supervisor for a run."""
    message = f"run {path.name} has a supervisor already; to follow it: tflaunch attach {path.name}"
    return TflaunchError(message, EXIT_USAGE)
