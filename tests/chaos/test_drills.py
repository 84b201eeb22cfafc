"""Real trainings survive real faults: drills with known seeds, in which all kinds of faults are drawn."""

from pathlib import Path

import pytest

from chaos.__main__ import play
from chaos.drill import KINDS, draw
from support.memory_group import need_memory_groups
from support.needs import need
from support.sshd import Keyring

SEEDS = (23955, 4856, 11283, 16867, 21759, 23811, 30167, 32638, 9)
"""Drills of three faults each, which all take effect; `make test` plays the first.

When `draw` changes, `make chaos` shows which ones to choose.
"""


@pytest.mark.unit
def test_all_kinds_of_faults_are_drawn() -> None:
    """No kind of fault is left to `make chaos` alone."""
    assert {fault.kind for seed in SEEDS for fault in draw(seed).faults} == set(KINDS)


@pytest.mark.ssh
@pytest.mark.tensorflow
@pytest.mark.parametrize("seed", [SEEDS[0], *(pytest.param(seed, marks=pytest.mark.thorough) for seed in SEEDS[1:])])
def test_training_survives(tmp_path: Path, keys: Keyring, seed: int) -> None:
    """At least one fault of a drill takes effect, and no invariant is violated."""
    need("namespaces")
    kinds = {fault.kind for fault in draw(seed).faults}
    if "exceed memory" in kinds:
        need_memory_groups()
    if "step clock" in kinds:
        need("gcc")
    wrong, suffered, _ = play(draw(seed), tmp_path / "drill", keys)
    assert not wrong, f"after {[what for _, what in suffered]}"
    assert suffered
