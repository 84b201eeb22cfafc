"""Random histories of the real supervisor, sessions and agents, in which planted bugs are found."""

from __future__ import annotations

import pytest

from simulator.__main__ import story
from simulator.history import Result, play
from simulator.mutations import MUTATIONS, find

pytestmark = pytest.mark.simulator

SEEDS = range(1000)


def test_the_invariants_hold_in_every_history() -> None:
    """I1 to I9, in 1000 histories; `make simulate` plays many more."""
    failed = [story(result) for seed in SEEDS if (result := play(seed)).violation]
    assert not failed, f"{len(failed)} histories failed, the first of them:\n{failed[0]}"


@pytest.mark.parametrize("seed", range(0, 200, 40))
def test_a_seed_gives_the_same_history_again(seed: int) -> None:
    """To the last message and the last digit."""
    assert told(play(seed)) == told(play(seed))


def told(result: Result) -> list[str]:
    """Return all that happened in a history."""
    return [entry.line() for entry in result.world.happened]


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_planted_bug_is_found(name: str) -> None:
    """By the invariant that it breaks, in the seed that has shown it before or in any other."""
    mutation = MUTATIONS[name]
    assert find(mutation, [mutation.seed, *SEEDS]) is not None
