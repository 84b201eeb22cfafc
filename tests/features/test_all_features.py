"""What needs all features at once: help texts and their page, suggestions of verbs, specs that come with tflaunch."""

import inspect
import runpy

import click
import pytest

from support.specs import REPOSITORY
from tflaunch.cli.help import MEANINGS, no_such_command
from tflaunch.cli.main import tflaunch, verbs


def test_every_suggestion_is_a_command() -> None:
    assert not set(MEANINGS) & set(verbs())
    assert [name for name in MEANINGS if "lists the commands" in no_such_command(name, verbs()).message] == []


def test_the_page_of_all_commands_is_up_to_date() -> None:
    """To update it: python docs/commands.py."""
    script = runpy.run_path(str(REPOSITORY / "docs" / "commands.py"))
    assert script["PAGE"].read_text() == script["page"]()


@pytest.mark.parametrize("name", tflaunch.list_commands(click.Context(tflaunch)))
def test_every_command_explains_itself(name: str) -> None:
    command = tflaunch.get_command(click.Context(tflaunch), name)
    assert command.short_help
    assert "\b\nExample" in inspect.cleandoc(command.help or "")
    assert all(parameter.help for parameter in command.params if isinstance(parameter, click.Option))
