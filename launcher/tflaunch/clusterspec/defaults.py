"""Defaults of user and project: files in the form of a spec, which overrides them.

The user's file is ``~/.config/tflaunch/config.toml`` (``$XDG_CONFIG_HOME``), or the one that ``TFLAUNCH_CONFIG`` names;
the project's is ``tflaunch.toml`` beside the spec and overrides it. An empty ``TFLAUNCH_CONFIG`` disables both.
"""

import os
import shlex
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tflaunch.clusterspec.values import Location, format_place
from tflaunch.errors import Problem, SpecError

VARIABLE = "TFLAUNCH_CONFIG"
"""Environment variable with the path of the user's file; empty disables all defaults."""

BESIDE = "tflaunch.toml"
"""The project's file, beside the spec."""

OF_ONE_JOB = ("name", "cluster", "discover", "sidecars")
"""Fields without defaults, because they define one job."""


def complete(data: dict[str, Any], defaults: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return a spec's data completed by a file of defaults, and the places of these."""
    new: dict[Location, Any] = {}
    completed = _merged(_used(defaults, data), data, (), new)
    return completed, [format_place(location) for location in new]


def files_of(directory: Path, environ: Mapping[str, str]) -> list[Path]:
    """Return the files of defaults for a directory; earlier ones override later ones."""
    named = environ.get(VARIABLE)
    if named == "":
        return []
    beside = directory / BESIDE
    files = [beside] if os.path.isfile(beside) else []
    if named is not None:
        return [*files, Path(named)]  # not checked for existence: a missing file is an error
    home = environ.get("HOME")
    config = environ.get("XDG_CONFIG_HOME", "")
    if not config.startswith("/"):  # the XDG specification has a relative path ignored
        config = f"{home}/.config" if home else ""
    usual = Path(config) / "tflaunch" / "config.toml"
    return [*files, usual] if config.startswith("/") and os.path.isfile(usual) else files


def check_owner(path: Path) -> None:
    """Reject a file that another user may have written.

    It could add commands and variables to every job.

    Raises:
        SpecError: the file does not belong to the user, root or the owner of its directory, or is world-writable.
    """
    try:
        status, owner_there = path.stat(), path.parent.stat().st_uid
    except OSError:
        return  # reading it will report this
    if status.st_uid not in (os.geteuid(), 0, owner_there):
        problem = Problem("error", "", "belongs to another user", f"remove it, or set {VARIABLE}= to do without")
    elif status.st_mode & stat.S_IWOTH:
        problem = Problem("error", "", "can be written by everybody", f"chmod o-w {shlex.quote(str(path))}")
    else:
        return
    raise SpecError(str(path), [problem])


def _used(defaults: dict[str, Any], data: dict[str, Any]) -> dict[str, Any]:
    """Return a file's data without the settings of roles that the spec does not have."""
    there = [role for field in ("cluster", "discover") if isinstance(data.get(field), dict) for role in data[field]]
    roles = {role: settings for role, settings in defaults.get("roles", {}).items() if role in there}
    return {**defaults, "roles": roles} if "roles" in defaults else defaults


def _merged(defaults: dict[str, Any], data: dict[str, Any], at: Location, new: dict[Location, Any]) -> dict[str, Any]:
    """Return the data completed by the defaults, which are also added to ``new``."""
    merged = dict(data)
    for name, value in defaults.items():
        here = (*at, name)
        if isinstance(value, dict) and isinstance(merged.get(name, {}), dict):
            inner = _merged(value, merged.get(name, {}), here, new)
            if inner or name in merged:
                merged[name] = inner
        elif name not in merged:
            merged[name] = value
            new[here] = value
    return merged
