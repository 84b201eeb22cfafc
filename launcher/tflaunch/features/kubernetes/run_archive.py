"""A run directory as a tar archive, to and from a supervisor in a cluster."""

import os
import shutil
import tarfile
from pathlib import Path, PurePosixPath
from typing import IO

from tflaunch import private_files
from tflaunch.store.run_dir import PARTS_NAME, RESERVE_NAME, SOCKET_NAME

_ROOT = "run"  # the run directory in an archive
_LEFT_OUT = {SOCKET_NAME, RESERVE_NAME, "lock", "agents", PARTS_NAME}
_FROM_HERE = (("code",), ("code.json",))  # the user's code, which is where the run was started
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW


class ArchiveError(Exception):
    """Raised when an archive is incomplete or damaged; the message is one sentence."""


def add_file(archive: tarfile.TarFile, source: Path, name: str) -> None:
    """Add a file to an archive, as ``name`` in its run directory."""
    archive.add(source, f"{_ROOT}/{name}")


def write_archive(directory: Path, stream: IO[bytes]) -> None:
    """Write a run directory, without what only its supervisor uses."""

    def chosen(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        path = PurePosixPath(member.name)
        return None if path.name in _LEFT_OUT or path.parts[1:2] in _FROM_HERE else member

    with tarfile.open(fileobj=stream, mode="w|") as archive:
        archive.add(directory, _ROOT, filter=chosen)
    stream.flush()


def unpack_archive(stream: IO[bytes], directory: Path) -> None:
    """Unpack an archive as a run directory, which may exist.

    Only files and directories are unpacked. They belong to the user of this process, and no other user can read them.

    Raises:
        ArchiveError: it is incomplete or damaged.
        OSError: a file cannot be written.
    """
    try:
        with tarfile.open(fileobj=stream, mode="r|*") as archive:
            for member in archive:
                path = directory / _checked(member.name)
                if member.isdir():
                    private_files.make_directories(path)
                elif member.isfile() and (content := archive.extractfile(member)) is not None:
                    private_files.make_directories(path.parent)
                    with open(os.open(path, _FLAGS, 0o600 | member.mode & 0o100), "wb") as file:
                        shutil.copyfileobj(content, file)
    except (ValueError, tarfile.TarError, EOFError) as error:
        raise ArchiveError(f"the files of the run cannot be read: {error}") from None


def _checked(name: str) -> PurePosixPath:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise ValueError(f"{name!r} is not a path inside a run directory")
    return path.relative_to(_ROOT)
