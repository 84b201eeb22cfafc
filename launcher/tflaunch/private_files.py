"""Create and append to private files; reject what others can write."""

import grp
import os
import pwd
import shlex
import stat
from pathlib import Path

from tflaunch.errors import EXIT_INTERNAL, TflaunchError

_BLOCK = 64 * 1024
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW


def make_directories(path: Path) -> None:
    """Create a directory and its missing parents, all with mode 0700; raises OSError."""
    missing = []
    while not path.is_dir():
        missing.append(path)
        path = path.parent
    for each in reversed(missing):
        each.mkdir(mode=0o700, exist_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a file with mode 0600 in place of any; surrogate escapes become bytes."""
    with open(os.open(path, _FLAGS, 0o600), "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write(text)


def replace_text(path: Path, text: str) -> None:
    """Write a file as `write_text` does; no process sees only a part of it."""
    write_text(new := path.with_name(f".{path.name}.{os.getpid()}"), text)
    new.replace(path)


def require_own(path: Path, *, is_base: bool = False) -> None:
    """Reject a directory in which another user could have put files.

    ``is_base``: only our own directories are used in it, each checked as well; then it may belong to root, and have the
    sticky bit like /tmp.

    Raises:
        OSError: it cannot be examined.
        TflaunchError: it belongs to another user, or others can write to it.
    """
    status = path.stat()
    trusted = {os.getuid(), 0} if is_base else {os.getuid()}
    foreign = {path.lstat().st_uid, status.st_uid} - trusted  # the owner of a symlink decides where it leads
    if foreign:
        owner = user_name(foreign.pop())
        message = f"{path} belongs to {owner}; run tflaunch as {owner}, or set TFLAUNCH_HOME to a directory of yours"
        raise TflaunchError(message, EXIT_INTERNAL)
    if is_base and status.st_mode & stat.S_ISVTX:
        return
    by_others = status.st_mode & stat.S_IWOTH
    if by_others or (status.st_mode & stat.S_IWGRP and not _is_group_of_one(status)):
        who = "any user" if by_others else f"group {_group_name(status.st_gid)}"
        remedy = f"chmod go-w {shlex.quote(str(path))}, or set TFLAUNCH_HOME to a directory of yours"
        message = f"{path} can be written to by {who}, whose files could be run as yours; {remedy}"
        raise TflaunchError(message, EXIT_INTERNAL)


def _is_group_of_one(status: os.stat_result) -> bool:
    """Whether the group is the owner's private one, which umask 002 lets write."""
    try:
        user, group = pwd.getpwuid(status.st_uid), grp.getgrgid(status.st_gid)
    except KeyError:
        return False
    return user.pw_gid == group.gr_gid and user.pw_name == group.gr_name and set(group.gr_mem) <= {user.pw_name}


def user_name(number: int) -> str:
    """Return the name of a user, or ``user 1000`` without one."""
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"user {number}"


def _group_name(number: int) -> str:
    try:
        return grp.getgrgid(number).gr_name
    except KeyError:
        return str(number)


def open_to_append(path: Path) -> int:
    """Open or create a file of lines, without an incomplete last one; raises OSError."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    # The last line is incomplete if its writer was killed within it, or the disk was full: the next line would continue
    # it, and a reader would take both for one damaged line.
    end = os.fstat(descriptor).st_size
    while end > 0:
        start = max(end - _BLOCK, 0)
        newline = os.pread(descriptor, end - start, start).rfind(b"\n")
        if newline >= 0:
            os.ftruncate(descriptor, start + newline + 1)
            return descriptor
        end = start
    os.ftruncate(descriptor, 0)
    return descriptor


def append(descriptor: int, lines: bytes) -> bool:
    """Append all of the lines or none; return whether the disk had room."""
    try:
        kept = os.write(descriptor, lines)
    except OSError:
        return False
    if kept < len(lines):  # the disk is full: take back the beginning, which readers would wait for the end of
        os.ftruncate(descriptor, os.fstat(descriptor).st_size - kept)
    return kept == len(lines)
