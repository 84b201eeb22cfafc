"""Suggestions for verbs that tflaunch does not have."""

from __future__ import annotations

import pytest

from tflaunch.cli.help import no_such_command
from tflaunch.cli.main import tflaunch

pytestmark = pytest.mark.unit

VERBS = tflaunch.list_commands(None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("stop", "down"),
        ("scancel", "down"),
        ("STATUS", "ps"),
        ("get", "ps"),
        ("list", "ls"),
        ("log", "logs"),
        ("torchrun", "run"),
        ("sbatch", "up"),
        ("retry", "rerun"),
        ("docs", "help"),
        ("download", "fetch"),
        ("dry-run", "plan"),
        ("pss", "ps"),
        ("downlod", "fetch"),
    ],
)
def test_a_verb_of_another_tool_leads_to_ours(name: str, meant: str) -> None:
    """In any case of letters, and if it is misspelled."""
    assert no_such_command(name, VERBS).message == f"No such command {name!r}; did you mean `tflaunch {meant}`?"


@pytest.mark.parametrize("name", ["rm", "delete", "exec", "pause"])
def test_a_verb_without_a_counterpart_gets_a_sentence(name: str) -> None:
    """It names the verbs that do part of the work."""
    message = no_such_command(name, VERBS).message
    assert "did you mean" not in message
    assert "`tflaunch " in message


@pytest.mark.parametrize(
    "name", ["dwon", "stopp", "kil", "restrat", "retart", "reruns", "runn", "delte", "prun", "qqq"]
)
def test_a_misspelled_word_leads_to_no_verb_that_changes_something(name: str) -> None:
    """It leads to the list of commands."""
    assert no_such_command(name, VERBS).message == f"No such command {name!r}; `tflaunch --help` lists the commands"


def test_every_suggestion_is_a_command() -> None:
    """Or an option of the program itself."""
    from tflaunch.cli.help import _MEANT

    first = {meant.split()[0] for meant in _MEANT.values() if "`" not in meant}
    assert first - {"--version"} <= set(VERBS)
    assert not set(_MEANT) & set(VERBS)
