"""Keep the plans of specs, so that `up` need not validate an unchanged spec again.

Validating one takes longer than starting its tasks, because pydantic has to be imported. A plan depends on nothing but
the spec's text, the command line, the files of defaults, the environment and facts about this machine. All of them are
part of the key, or are compared when an entry is read. Specs whose hosts are discovered are not kept.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from importlib.util import source_hash
from pathlib import Path
from typing import Any

import tflaunch
from tflaunch import private_files
from tflaunch.clusterspec import defaults
from tflaunch.clusterspec.spec_file import SpecFile
from tflaunch.discovery import local_machine
from tflaunch.errors import Problem, TflaunchError
from tflaunch.plan import serialize
from tflaunch.plan.model import Plan
from tflaunch.rooms import rooms
from tflaunch.store import run_dir
from tflaunch_worker.named_tuple import NamedTuple

_MOST_KEPT = 64
_SOURCES = ("clusterspec", "discovery", "plan")
"""The packages whose code decides what a plan looks like."""


class Planned(NamedTuple):
    """The plan of a spec, and the warnings about the spec."""

    plan: Plan
    warnings: list[Problem]

    def with_warnings(self, more: Sequence[Problem]) -> Planned:
        """Return it with more warnings, which the plan may need, too."""
        return Planned(self.plan.warned(more), [*self.warnings, *more])


def plan_spec(
    file: SpecFile,
    settings: Sequence[str] = (),
    name: str | None = None,
    command: Sequence[str] = (),
    *,
    is_detached: bool = False,
) -> Planned:
    """Return the plan of a spec; arguments are those of `prepare.read_spec` and `prepare.make_plan`.

    Raises:
        SpecError: the spec has errors; lists all of them, and the warnings.
    """
    path = _directory() / f"{_key(file, settings, name, command, is_detached)}.json"
    kept = _read(path)
    if kept is not None:
        return kept
    from tflaunch.discovery import prepare
    from tflaunch.plan import lint

    spec = prepare.load_spec(file, settings, name, command)
    has_fixed_hosts = not spec.discover and spec.pool is None
    spec, warnings = prepare.complete(file.source, file.directory, spec)
    plan = prepare.make_plan(file.directory, spec, is_detached=is_detached)
    planned = Planned(plan, [*warnings, *lint.unused_image(spec, None)])
    about_files = prepare.warnings_about_files(spec, file.directory)
    if has_fixed_hosts:
        hosts = sorted({address.host for role in spec.cluster.values() for address in role})
        _write(path, planned, [*hosts, *(sidecar.host for sidecar in spec.sidecars.values())], about_files)
    return planned.with_warnings([problem for problem, _ in about_files])


def _directory() -> Path:
    return run_dir.home() / "plans"


def _key(file: SpecFile, settings: Sequence[str], name: str | None, command: Sequence[str], is_detached: bool) -> str:
    """Return a hash of all that is known before the spec is read, as Python makes one of a module's text."""
    spec = [file.source, str(file.directory.absolute()), file.suffix, file.text]
    options = [list(settings), name, list(command), is_detached, list(rooms())]
    files = [(str(path), *_file_state(path)) for path in defaults.files_of(file.directory, os.environ)]
    process = [sys.executable, os.getuid(), sorted(os.environ.items())]
    code = [tflaunch.__version__, _state_of_code()]
    return source_hash(json.dumps([spec, options, files, process, code]).encode()).hex()


def _file_state(path: Path) -> tuple[object, ...]:
    """Return a file's text, and what decides whether it is trusted."""
    try:
        status = path.stat()
        return path.read_text("utf-8", "surrogateescape"), status.st_uid, status.st_mode, path.parent.stat().st_uid
    except OSError as error:
        return (str(error),)


def _state_of_code() -> list[tuple[str, int, int]]:
    """Return name, time and size of the modules in `_SOURCES`, as Python does for its own cache."""
    found = []
    for package in _SOURCES:
        with os.scandir(Path(__file__).parent.parent / package) as entries:
            for entry in entries:
                if entry.name.endswith(".py"):
                    status = entry.stat()
                    found.append((entry.path, status.st_mtime_ns, status.st_size))
    return sorted(found)


def _facts(hosts: Sequence[str]) -> dict[str, Any]:
    """Return the facts about this machine in a plan for these hosts, without the environment."""
    machine = local_machine.describe_machine(hosts)._asdict()
    del machine["environ"]
    return {**machine, "local_names": sorted(machine["local_names"])}


def _read(path: Path) -> Planned | None:
    """Return what is kept in a file; None if it is not there, cannot be trusted, or is for another machine."""
    try:
        private_files.require_own(path.parent)
        kept = json.loads(path.read_bytes())
        if kept["facts"] != _facts(kept["hosts"]):
            return None
        # A file that has changed is not read again here: what was said about it may not hold any more.
        about_files = [
            Problem(*problem)
            for problem, path, state in kept["about_files"]
            if not path or _time_and_size(path) == state
        ]
        warnings = [Problem(*problem) for problem in kept["warnings"]]
        return Planned(serialize.from_json(kept["plan"]), warnings).with_warnings(about_files)
    except (OSError, TflaunchError, ValueError, KeyError, TypeError):
        return None


def _time_and_size(path: str | Path) -> list[int]:
    status = os.stat(path)
    return [status.st_mtime_ns, status.st_size]


def _write(path: Path, planned: Planned, hosts: list[str], about_files: Sequence[tuple[Problem, Path | None]]) -> None:
    """Keep a plan; without room or permission, it is compiled again the next time."""
    kept: dict[str, Any] = {
        "hosts": hosts,
        "facts": _facts(hosts),
        "plan": serialize.as_json(planned.plan),
        "warnings": planned.warnings,
    }
    new = path.with_suffix(f".{os.getpid()}")
    try:
        kept["about_files"] = [
            (problem, *((str(name.absolute()), _time_and_size(name)) if name else ("", [])))
            for problem, name in about_files
        ]
        private_files.make_directories(path.parent)
        private_files.require_own(path.parent)
        private_files.write_text(new, json.dumps(kept, separators=(",", ":")))
        new.rename(path)
        for old in sorted(path.parent.iterdir(), key=lambda entry: entry.stat().st_mtime)[:-_MOST_KEPT]:
            old.unlink()
    except (OSError, TflaunchError):
        pass
