"""Real Slurm clusters for the tests of this directory."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.launch import Launch
from support.needs import need
from support.netns_hosts import Bed
from support.slurm_cluster import SlurmBed
from support.sshd import Keyring


@pytest.fixture(scope="session")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmBed]:
    """Two nodes, both on this machine, for all tests."""
    need("slurm")
    with SlurmBed.on_this_machine(tmp_path_factory.mktemp("slurm"), 2) as bed:
        yield bed


@pytest.fixture(scope="session")
def three_nodes(tmp_path_factory: pytest.TempPathFactory, keys: Keyring) -> Iterator[tuple[Bed, SlurmBed]]:
    """Hosts h1, h2 and h3 as nodes, for all tests that leave them unchanged."""
    need("slurm")
    need("namespaces")
    directory = tmp_path_factory.mktemp("nodes")
    with Bed(directory / "bed", keys) as bed, SlurmBed.on_hosts(directory / "slurm", bed) as slurm:
        yield bed, slurm


@pytest.fixture
def nodes(three_nodes: tuple[Bed, SlurmBed], launch: Launch) -> Iterator[SlurmBed]:
    """Let tflaunch run where their Slurm is available; no job and no process may be left on a node."""
    bed, slurm = three_nodes
    log_in(launch, bed, slurm)
    yield slurm
    try:
        slurm.wait_until(slurm.is_empty, "a job was left")
    except AssertionError:
        slurm.asked("scancel", *slurm.asked("squeue", "--noheader", "--format=%i").split())  # or all others fail, too
        raise
    # A step of Slurm may kill what is left of a job after the job has ended.
    slurm.wait_until(
        lambda: all("slurm" in "".join(each.cmdline[:1]) for each in bed.survivors()), "a process was left on a node"
    )


@pytest.fixture
def make_nodes(tmp_path: Path, keys: Keyring, launch: Launch) -> Iterator[tuple[Bed, SlurmBed]]:
    """Hosts as nodes of the test's own, which it may power off."""
    need("slurm")
    need("namespaces")
    with Bed(tmp_path / "bed", keys) as bed, SlurmBed.on_hosts(tmp_path / "slurm", bed, loses_nodes=True) as slurm:
        log_in(launch, bed, slurm)
        yield bed, slurm


def log_in(launch: Launch, bed: Bed, slurm: SlurmBed) -> None:
    """Run tflaunch on the machine from which jobs are submitted."""
    launch.prefix = bed.run_prefix
    launch.env |= slurm.env
