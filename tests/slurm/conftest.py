"""A real Slurm for the tests of this directory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from slurm_bed import SlurmBed, need_slurm


@pytest.fixture(scope="session")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmBed]:
    """Two nodes, for all tests."""
    need_slurm()
    with SlurmBed(tmp_path_factory.mktemp("slurm"), nodes=2) as bed:
        yield bed
