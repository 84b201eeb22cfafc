"""What needs all rooms at once: the order of the help, suggestions of verbs, and the specs that come with tflaunch."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.specs import REPOSITORY
from tflaunch.cli.help import MEANINGS, no_such_command
from tflaunch.cli.main import verbs
from tflaunch.clusterspec import load
from tflaunch.clusterspec.values import Address
from tflaunch.plan import lint

pytestmark = pytest.mark.unit


def test_a_verb_follows_the_one_that_it_names() -> None:
    names = list(verbs())
    assert names.index("stacks") == names.index("explain") + 1
    assert names.index("init") + 1 == names.index("run")


def test_every_suggestion_is_a_command() -> None:
    assert not set(MEANINGS) & set(verbs())
    assert [name for name in MEANINGS if "lists the commands" in no_such_command(name, verbs()).message] == []


@pytest.mark.parametrize("path", sorted((REPOSITORY / "cluster_specs").glob("*.json")), ids=lambda path: path.name)
def test_every_spec_that_comes_with_tflaunch_has_no_problem(path: Path) -> None:
    spec = load.load_spec(path, environ={"HOME": "/home/ann"})
    found = {role: (Address("h1", None), Address("h2", None)) for role in spec.discover}
    assert lint.check_spec(spec.model_copy(update={"cluster": {**spec.cluster, **found}})) == []
