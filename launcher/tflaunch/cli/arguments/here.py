"""What the working directory offers to a command line that names nothing: a spec, a training program."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

_SPECS = tuple(Path("cluster" + suffix) for suffix in (".json", ".yaml", ".yml", ".toml"))
_PROGRAMS = ("train.py", "main.py")


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


def likely_program() -> str | None:
    """Return the name of what seems to be the training program here, None if it could be any or none."""
    found = sorted(path.name for path in Path().glob("*.py"))
    return next((name for name in _PROGRAMS if name in found), found[0] if len(found) == 1 else None)


def first_steps() -> str:
    """Return a list of what could be done here, "" if nothing here can be run."""
    specs, program = specs_here(), likely_program()
    steps = {f"tflaunch up {path}" if len(specs) > 1 else "tflaunch up": f"Run {path}." for path in specs}
    if not specs and program is not None:
        run = shlex.join(["tflaunch", "run", "-n", "2", "python", program])
        steps = {run: f"Run {program} on two workers.", "tflaunch init": "Write a spec for it."}
    width = max(map(len, steps), default=0)
    return "\n".join(["Here:"] * bool(steps) + [f"  {step:<{width}}  {what}" for step, what in steps.items()])
