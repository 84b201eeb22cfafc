"""Find tflaunch's directory of this user, and have compiled modules kept there where Python cannot keep them.

Many images set PYTHONDONTWRITEBYTECODE and lack the compiled standard library, and some installations can be written by
root alone: every command would compile all that it imports. This module is itself compiled by every command there, so
it imports nothing else.
"""

from __future__ import annotations

import os
import sys

COMPILED_NAME = "compiled"
"""Directory of compiled modules in tflaunch's directory."""
_ROOM = 64 * 1024 * 1024  # bytes left on a disk below which Python might write half a file, and fail to import it


def home_path() -> str:
    """Return the path of tflaunch's directory: $TFLAUNCH_HOME or the default. It need not exist, or be safe to use."""
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return os.environ.get("TFLAUNCH_HOME") or os.path.join(state, "tflaunch")


def keep_compiled_modules() -> None:
    """Keep what this process imports compiled, in that directory, if Python has not kept the first modules itself.

    Other processes that this one starts are not affected.
    """
    if _is_compiled("tflaunch") and _is_compiled("encodings"):
        return
    home = os.path.abspath(home_path())
    directory = os.path.join(home, COMPILED_NAME)
    umask = os.umask(0o077)
    try:
        for place in (home, directory):
            os.makedirs(place, exist_ok=True)
            if not _is_safe(place):
                return
        disk = os.statvfs(directory)
        sys.pycache_prefix, sys.dont_write_bytecode = directory, disk.f_bavail * disk.f_frsize < _ROOM
    except OSError:
        pass  # such a home is reported by the commands that need one
    finally:
        os.umask(umask)


def _is_compiled(module: str) -> bool:
    """Return whether a module that was imported needs not be compiled by the next process."""
    spec = sys.modules[module].__spec__
    return spec is None or spec.cached is None or os.path.exists(spec.cached)


def _is_safe(directory: str) -> bool:
    """Return whether no other user can put files into a directory, which would be run as this user."""
    found, link = os.stat(directory), os.lstat(directory)
    return {found.st_uid, link.st_uid} == {os.getuid()} and not found.st_mode & 0o022
