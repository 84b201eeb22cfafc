"""What a plan leaves to the host: its own variables, and shares of what it has."""

from __future__ import annotations

import os

import pytest

from tflaunch_worker.looking import cores
from tflaunch_worker.tasks.host_values import UnknownValue, expand, expand_path

pytestmark = pytest.mark.unit

KNOWN = {"SCRATCH": "/fast", "TFLAUNCH_CORES": "7", "GPUS": "3, GPU-8a,7"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain ${SCRATCH}", "plain ${SCRATCH}"),
        ("${host:SCRATCH}/data:${host:SCRATCH}", "/fast/data:/fast"),
        ("${host:TFLAUNCH_CORES}", "7"),
        ("${host:TFLAUNCH_CORES/2}", "3"),
        ("${host:TFLAUNCH_CORES/8}", "1"),
        ("${host:TFLAUNCH_CORES/0}", "${host:TFLAUNCH_CORES/0}"),
        ("${host:GPUS[0:1]}", "3"),
        ("${host:GPUS[1:3]}", "GPU-8a,7"),
        ("${host:GPUS[1:1]}", ""),
        ("${host:GPUS[1]}", "${host:GPUS[1]}"),
    ],
)
def test_references_are_replaced(text: str, expected: str) -> None:
    """A share is rounded down, and at least 1."""
    assert expand(text, KNOWN) == expected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("${host:NO}", "'NO' is not set"),
        ("${host:SCRATCH/2}", "is no number"),
        ("${host:GPUS[2:4]}", "has 3 entries on this host, and 4 are wanted"),
    ],
)
def test_what_the_host_does_not_have_is_said(text: str, said: str) -> None:
    """By its name."""
    with pytest.raises(UnknownValue, match=said):
        expand(text, KNOWN)


def test_the_home_directory_is_the_hosts_own() -> None:
    """Only at the beginning of a path."""
    assert expand_path("~/x", KNOWN) == os.path.expanduser("~/x")
    assert expand_path("a~/x", KNOWN) == "a~/x"


def test_cores_are_those_that_this_process_may_use() -> None:
    """Its affinity counts, not the machine."""
    before = os.sched_getaffinity(0)
    assert 1 <= cores.usable() <= len(before)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert cores.usable() == 1
    finally:
        os.sched_setaffinity(0, before)
