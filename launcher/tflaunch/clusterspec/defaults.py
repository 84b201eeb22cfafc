"""Defaults of a user or a project for fields of a spec: files of the same form, merged below each spec.

The user's is ``~/.config/tflaunch/config.toml`` (``$XDG_CONFIG_HOME``), or the file that ``TFLAUNCH_CONFIG`` names; the
project's is ``tflaunch.toml`` beside the spec, and goes before it. An empty ``TFLAUNCH_CONFIG`` switches both off.
"""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tflaunch.clusterspec.problems import Location, format_place
from tflaunch.errors import Problem, SpecError

VARIABLE = "TFLAUNCH_CONFIG"
"""Names the user's file instead of the usual one; empty for no defaults at all."""

BESIDE = "tflaunch.toml"
"""The project's file, beside the spec."""

OF_ONE_JOB = ("name", "cluster", "discover", "sidecars")
"""Fields that have no default: they say what one job is."""


def below(
    data: dict[str, Any], directory: Path, environ: Mapping[str, str], read: Callable[[Path], dict[str, Any]]
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the data of a spec with defaults where it is silent, and the place of each of those with its file.

    Args:
        data: the spec's, which stay as they are.
        directory: where the spec is.
        environ: says where the user's file is.
        read: returns the data of a file, checked as those of a spec.

    Raises:
        SpecError: one of the files cannot be used; with every problem in it.
    """
    origins: dict[str, str] = {}
    for path in _files(directory, environ):
        _check_owner(path)
        found = _used(read(path), data)
        new: dict[Location, Any] = {}
        data = _merged(found, data, (), new)
        origins |= {format_place(location): str(path) for location in new}
    return data, origins


def _files(directory: Path, environ: Mapping[str, str]) -> list[Path]:
    """Return the files that exist; an earlier one overrides a later one."""
    named = environ.get(VARIABLE)
    if named == "":
        return []
    beside = directory / BESIDE
    files = [beside] if os.path.isfile(beside) else []
    if named is not None:
        return [*files, Path(named)]  # named and not there is a mistake
    home = environ.get("HOME")
    config = environ.get("XDG_CONFIG_HOME") or (f"{home}/.config" if home else "")
    usual = Path(config) / "tflaunch" / "config.toml"
    return [*files, usual] if config.startswith("/") and os.path.isfile(usual) else files


def _check_owner(path: Path) -> None:
    """Refuse a file that another user may have put there: it could add commands and variables to every job.

    Raises:
        SpecError: it is not of the user, of root or of the owner of its directory, or everybody may write it.
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


def _used(found: dict[str, Any], data: dict[str, Any]) -> dict[str, Any]:
    """Return what of a file's data concerns a spec: not the settings of roles that it does not have."""
    there = [role for field in ("cluster", "discover") if isinstance(data.get(field), dict) for role in data[field]]
    roles = {role: settings for role, settings in found.get("roles", {}).items() if role in there}
    return {**found, "roles": roles} if "roles" in found else found


def _merged(defaults: dict[str, Any], data: dict[str, Any], at: Location, new: dict[Location, Any]) -> dict[str, Any]:
    """Return the data completed by the defaults; what comes from the defaults is added to ``new``."""
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
