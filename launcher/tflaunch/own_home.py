"""Find tflaunch's directory of this user, and say so if it is an unusual one."""

from __future__ import annotations

import os

from tflaunch_worker import boot


def home_path() -> str:
    """Return $TFLAUNCH_HOME or the default; it need not exist, or be safe to use."""
    return boot.own_directory(is_given=True)


def notice() -> str:
    """Return a sentence if root's HOME belongs to another user (`sudo -E`), else ""."""
    path, home = home_path(), os.environ.get("HOME", "")
    if os.environ.get("TFLAUNCH_HOME") or os.getuid() != 0 or not os.path.isdir(home):
        return ""
    if os.stat(home).st_uid == 0 or path.startswith(os.path.join(home, "")):
        return ""
    return f"HOME={home} is not root's, so the files of this run are in {path}; use `sudo -H`, or set TFLAUNCH_HOME"
