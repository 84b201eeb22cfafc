"""Options for `up --on kubernetes`."""

from __future__ import annotations

import click

from tflaunch.cli.arguments.launch import Launching, RoomOption

_OPTIONS = {
    "namespace": ("kubernetes.namespace", "Create the pods in this namespace."),
    "context": ("kubernetes.context", "Use this kubectl context."),
    "image": ("container.image", "Run the tasks in this image."),
}


def _option(name: str, setting: str, text: str) -> RoomOption:
    flag = f"--{name}"

    def check(value: str, launching: Launching) -> None:
        if launching.engine != "kubernetes":
            raise click.UsageError(f"{flag} is for pods; add --on kubernetes.")

    option = click.option(flag, metavar="NAME", help=f"{text} With --on kubernetes.")
    return RoomOption(flag, option, check, is_for_run=False, setting=setting)


OPTIONS = tuple(_option(name, setting, text) for name, (setting, text) in _OPTIONS.items())
