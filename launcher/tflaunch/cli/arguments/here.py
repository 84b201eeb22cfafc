"""What the working directory offers: a spec, a training program."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from tflaunch.clusterspec.spec_file import SUFFIXES

_SPECS = tuple(Path("cluster" + suffix) for suffix in SUFFIXES)
_PROGRAMS = ("train.py", "main.py")
_MOST_SHOWN = 3  # programs
_MOST_READ = 1 << 20  # bytes of one


def specs_here() -> list[Path]:
    """Return the specs here with a name that commands look for."""
    return [path for path in _SPECS if path.exists()]


def usual_spec() -> Path:
    """Return the spec here, for commands that name none.

    Raises:
        click.MissingParameter: there is none, or more than one.
    """
    found = specs_here()
    if len(found) == 1:
        return found[0]
    message = f"{' and '.join(map(str, found))} are here; name one of them."
    if not found:
        usual = "cluster.json, .yaml, .yml or .toml"
        message = f"Name the path of a cluster spec, as no {usual} is here; `tflaunch init` writes one."
    raise click.MissingParameter(message, param_hint="'SPEC'", param_type="argument")


def programs_here() -> list[str]:
    """Return the names of the Python programs here."""
    return sorted(path.name for path in Path().glob("*.py"))


def likely_program() -> str | None:
    """Return the name of the likely training program here, None if there is none."""
    found = programs_here()
    return next((name for name in _PROGRAMS if name in found), found[0] if len(found) == 1 else None)


def _needs_servers(name: str) -> bool:
    """Return whether a program needs parameter servers and a chief beside its workers."""
    try:
        with open(name, "rb") as file:
            return b"ParameterServerStrategy" in file.read(_MOST_READ)
    except OSError:
        return False


def first_steps() -> str:
    """Return a list of what could be done here, "" if nothing here can be run."""
    specs, program = specs_here(), likely_program()
    steps = {f"tflaunch up {path}" if len(specs) > 1 else "tflaunch up": f"Run {path}." for path in specs}
    names = [program] if program is not None else programs_here()
    for name in [] if specs or len(names) > _MOST_SHOWN else names:
        init = "tflaunch init" if program is not None else shlex.join(["tflaunch", "init", "--", "python", name])
        if not _needs_servers(name):
            steps[shlex.join(["tflaunch", "run", "-n", "2", "python", name])] = f"Run {name} on two workers."
        steps[init] = f"Write a spec for {name}."
    width = max(map(len, steps), default=0)
    return "\n".join(["Here:"] * bool(steps) + [f"  {step:<{width}}  {what}" for step, what in steps.items()])
