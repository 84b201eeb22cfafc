"""Suggestions for verbs that tflaunch does not have."""

from __future__ import annotations

import pytest

from tflaunch.cli.help import no_such_command

pytestmark = pytest.mark.unit

VERBS = ("up", "run", "rerun", "ps", "ls", "logs", "fetch", "plan", "down", "kill", "restart", "prune", "help")
ROOMS = ("queue", "debug", "stacks", "exec")


@pytest.mark.parametrize(
    ("name", "meant"),
    [("STATUS", "ps"), ("list", "ls"), ("log", "logs"), ("torchrun", "run"), ("sbatch", "up"), ("retry", "rerun"),
     ("download", "fetch"), ("dry-run", "plan"), ("pss", "ps"), ("downlod", "fetch")],
)  # fmt: skip
def test_a_verb_of_another_tool_leads_to_ours(name: str, meant: str) -> None:
    """In any case of letters, and if it is misspelled."""
    assert no_such_command(name, VERBS).message == f"No such command {name!r}; did you mean `tflaunch {meant}`?"


@pytest.mark.parametrize("name", ["rm", "delete", "suspend", "pause"])
def test_a_verb_without_a_counterpart_gets_a_sentence(name: str) -> None:
    message = no_such_command(name, [*VERBS, *ROOMS]).message
    assert "did you mean" not in message
    assert "`tflaunch " in message


@pytest.mark.parametrize("name", ["dwon", "stopp", "kil", "retart", "delte", "prun", "qqq"])
def test_a_misspelled_word_leads_to_no_verb_that_changes_something(name: str) -> None:
    assert no_such_command(name, VERBS).message == f"No such command {name!r}; `tflaunch --help` lists the commands"


@pytest.mark.parametrize("name", ["squeue", "waiting", "pdb"])
def test_a_verb_that_is_missing_here_is_not_suggested(name: str) -> None:
    """Its feature may have been taken out."""
    assert no_such_command(name, VERBS).message == f"No such command {name!r}; `tflaunch --help` lists the commands"
    assert "lists the commands" not in no_such_command(name, [*VERBS, *ROOMS]).message
