"""Random histories of the real supervisor, sessions and agents, in which planted bugs are found."""

from __future__ import annotations

import pytest

from simulator.__main__ import story
from simulator.case import Case, Fault, Moment, draw_case
from simulator.history import Result, play
from simulator.mutations import MUTATIONS, find, planted
from simulator.programs import Script, Trouble
from simulator.search import Coverage
from simulator.shrink import shrink
from support.launch import LONG

pytestmark = pytest.mark.simulator

SEEDS = range(1000)
SHRUNK = ["a restart before the old attempt is gone", "fences are not scheduled"]
FEW = 20  # steps of a supervisor
MORE = {"progress is not seen": 90, "what was on its way is not sent again": 30, "a ladder without KILL": 30}
"""Bugs that show after more steps: several attempts, or two faults."""


def test_the_invariants_hold_in_every_history() -> None:
    """I1 to I9, in 1000 histories; `make simulate` plays many more."""
    failed = [story(result) for seed in SEEDS if (result := play(draw_case(seed))).violation]
    assert not failed, f"{len(failed)} histories failed, the first of them:\n{failed[0]}"


@pytest.mark.parametrize("seed", range(0, 200, 40))
def test_a_seed_gives_the_same_history_again(seed: int) -> None:
    """To the last message and the last digit."""
    assert told(play(draw_case(seed))) == told(play(draw_case(seed)))


def told(result: Result) -> list[str]:
    """Return all that happened in a history."""
    return [entry.line() for entry in result.world.happened]


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_planted_bug_is_found(name: str) -> None:
    """By the invariant that it breaks, in the seed that has shown it before or in any other."""
    mutation = MUTATIONS[name]
    assert find(mutation, [mutation.seed, *SEEDS]) is not None


@pytest.mark.parametrize("name", MUTATIONS if LONG else SHRUNK)
def test_a_history_is_shrunk_to_a_test_that_fails_with_the_bug_alone(name: str) -> None:
    """The test has a few steps of the supervisor, and can be pasted."""
    mutation = MUTATIONS[name]
    with planted(mutation):
        seed = find(mutation, [mutation.seed, *SEEDS])
        assert seed is not None
        smallest = shrink(play(draw_case(seed)), patience=60)
        assert smallest.violation is not None
        names = {"Case": Case, "Fault": Fault, "Moment": Moment, "Script": Script, "Trouble": Trouble, "play": play}
        exec(smallest.case.as_test(smallest.violation), names)
        pasted = names[f"test_history_{smallest.case.seed}"]
        with pytest.raises(AssertionError):
            pasted()
    pasted()
    assert smallest.steps <= MORE.get(name, FEW)


def test_faults_are_steered_to_where_few_were_injected() -> None:
    """Cells that a round drawn at random has left empty are filled by the next one."""
    coverage = Coverage()
    for seed in range(100):
        result = play(draw_case(seed))
        coverage.add(result.case, result.moments, result.cells)
    before = set(coverage.cells)
    for case in coverage.round(range(1000, 1100)):
        result = play(case)
        assert result.violation is None
        coverage.add(result.case, result.moments, result.cells)
    assert len(set(coverage.cells) - before) > 50
