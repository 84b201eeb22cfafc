"""Random histories of the real supervisor, sessions and agents, in which planted bugs are found."""

import os
import subprocess
import sys
from typing import Any

import pytest

from mutants.edits import Invariant
from mutants.find import find
from mutants.table import MUTANTS
from simulator.__main__ import story
from simulator.case import Case, Fault, Moment, draw_case
from simulator.history import play
from simulator.programs import Script, Trouble
from simulator.search import Coverage
from simulator.shrink import shrink
from support.launch import LONG
from support.specs import REPOSITORY

SEEDS = range(300)
ENDS = 200 if LONG else 50
"""Histories for each kind of end from outside."""
FOUND = {name: edit.found_by.seed for name, edit in MUTANTS.items() if isinstance(edit.found_by, Invariant)}
"""The planted bugs that the simulator finds, and the seed of the first history that does."""
SHRUNK = ["a restart before the old attempt is gone", "fences are not scheduled"]
SHRUNK_IN_FULL = [*SHRUNK, "a ladder without KILL", "progress is not seen", "output is taken twice"]
FEW = 20  # steps of a supervisor
MORE = {"progress is not seen": 90, "a ladder without KILL": 30}
"""Bugs that show after more steps: several attempts, or two faults."""


def test_the_invariants_hold_in_every_history() -> None:
    """I1 to I16, in 300 histories; `make simulate` plays many more."""
    failed = [story(result) for seed in SEEDS if (result := play(draw_case(seed))).violation]
    assert not failed, f"{len(failed)} histories failed, the first of them:\n{failed[0]}"


@pytest.mark.parametrize(("kind", "ending"), [("end_node", "again"), ("end_service", "exit 143")])
@pytest.mark.parametrize("hosts", ['["localhost", "localhost"]', '["a", "b"]'])
def test_tasks_that_exit_with_0_when_ended_from_outside_are_not_done(kind: str, ending: str, hosts: str) -> None:
    """Whoever hears of the end first, tasks or tflaunch: the job goes on in another attempt, or ends with 143."""
    script = Script(20.0, term="finishes")
    spec = f'{{"cluster": {{"worker": {hosts}}}, "command": ["train"]}}'
    results = [play(Case(seed, spec, script, (Fault(kind, seed, at=15.0),))) for seed in range(ENDS)]
    assert [story(result) for result in results if result.violation] == []
    endings = {"again" if '"attempt":1' in "".join(each.journal) else each.ending for each in results}
    assert endings == {ending}


def test_a_seed_gives_the_same_history_again() -> None:
    """To the last message, digit and byte of the journal; also in another process, which orders sets otherwise."""
    other = {**os.environ, "PYTHONPATH": str(REPOSITORY / "tests"), "PYTHONHASHSEED": "1"}
    command = [sys.executable, "-m", "simulator", "--seeds", "0:25", "--digests"]
    told = subprocess.run(command, env=other, stdout=subprocess.PIPE, text=True, check=True).stdout
    assert told.splitlines() == [f"{seed} {play(draw_case(seed)).digest()}" for seed in range(25)]


@pytest.mark.parametrize("name", FOUND)
def test_a_planted_bug_is_found(name: str) -> None:
    """By the invariant that it breaks, in the seed that has shown it before or in any other."""
    assert find(MUTANTS[name], [FOUND[name], *SEEDS]) is not None


@pytest.mark.parametrize("name", SHRUNK_IN_FULL if LONG else SHRUNK)
def test_a_history_is_shrunk_to_a_test_that_fails_with_the_bug_alone(name: str) -> None:
    """The test has a few steps of the supervisor, and can be pasted."""
    seed = find(MUTANTS[name], [FOUND[name], *SEEDS])
    assert seed is not None
    with MUTANTS[name].planted():
        smallest = shrink(play(draw_case(seed)))
        names: dict[str, Any] = {each.__name__: each for each in (Case, Fault, Moment, Script, Trouble, play)}
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
        coverage.add(result.case, result.moments, result.cells, result.events)
    before = set(coverage.cells)
    for case in coverage.round(range(1000, 1100)):
        result = play(case)
        assert result.violation is None
        coverage.add(result.case, result.moments, result.cells, result.events)
    assert len(set(coverage.cells) - before) > 50
