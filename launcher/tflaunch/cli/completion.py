"""`completion`: print the script that completes commands in a shell."""

from __future__ import annotations

import click

_SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(_SHELLS), metavar="bash|zsh|fish")
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print a script for SHELL that completes commands, options, runs and tasks.

    \b
    Example:
      eval "$(tflaunch completion bash)"
      tflaunch completion fish > ~/.config/fish/completions/tflaunch.fish
    """
    from click.shell_completion import get_completion_class

    kind, parent = get_completion_class(shell), context.parent
    assert kind is not None
    assert parent is not None
    click.echo(kind(parent.command, {}, "tflaunch", "_TFLAUNCH_COMPLETE").source())
