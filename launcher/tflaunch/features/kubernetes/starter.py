"""`up --on kubernetes`: options that are settings of the spec."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

_OPTIONS = {
    "namespace": ("kubernetes.namespace", "Create the pods in this namespace."),
    "context": ("kubernetes.context", "Use this kubectl context."),
    "image": ("container.image", "Run the tasks in this image."),
}
# Makes the object, without changing what the spec has in it: keys that begin with x- are ignored.
_CHOSEN = "kubernetes.x-on=true"


def kubernetes_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of `--on kubernetes` to a command, for `kubernetes_settings`."""
    for name, (_, text) in reversed(_OPTIONS.items()):
        command = click.option(
            f"--{name}", metavar="NAME", expose_value=False, callback=_note, help=f"{text} With --on kubernetes."
        )(command)
    return command


def _note(context: click.Context, option: click.Parameter, value: str | None) -> None:
    if value is not None:
        context.meta.setdefault(__name__, {})[option.name] = value


def kubernetes_settings(engine: str | None) -> tuple[str, ...]:
    """Return the given options as settings of the spec.

    Raises:
        click.UsageError: they were given without ``--on kubernetes``.
    """
    given: dict[str, str] = click.get_current_context().meta.get(__name__, {})
    if given and engine != "kubernetes":
        raise click.UsageError(f"--{next(iter(given))} is for pods; add --on kubernetes.")
    chosen = (_CHOSEN,) if engine == "kubernetes" else ()
    return chosen + tuple(f"{_OPTIONS[name][0]}={value}" for name, value in given.items())
