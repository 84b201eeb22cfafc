"""Where a job is in the queue of Slurm, and when that is told again."""

from __future__ import annotations

import math
import re
import time

import pytest

from tflaunch.features.slurm import commands
from tflaunch.features.slurm.commands import SlurmError, SlurmJob
from tflaunch.features.slurm.queue_place import QueuePlace, find_place

pytestmark = pytest.mark.unit

WAITING = SlurmJob("PENDING", "Priority", "", 0, 0, partition="all")


def squeue_says(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Have the jobs that wait for a partition be these, in the order of their priority."""
    monkeypatch.setattr(commands, "run_command", lambda *_: text)


def test_a_place_has_the_expected_start_if_slurm_knows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Slurm 22.05 writes it."""
    at = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(time.time() + 7200))
    squeue_says(monkeypatch, f"14 2020-01-01T00:00:00\n17 {at}\n18 N/A\n")
    place = find_place("17", WAITING)
    assert place is not None
    assert (place.position, place.of) == (2, 3)
    assert re.match(
        r"2 of 3 in the queue of its partition, expected to start in (2 h|1 h 59 min.*) \(", place.describe()
    )
    squeue_says(monkeypatch, f"14 2020-01-01T00:00:00\n17 {at}\n18 N/A\n")
    unknown = find_place("18", WAITING)
    assert unknown is not None
    assert unknown.describe() == "3 of 3 in the queue of its partition"


def test_a_field_without_a_value_does_not_take_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a job that waits again; of two parts, the first one counts."""
    told = "JobId=17 NodeList= BatchHost=n1 Comment=a\nJobId=18 NodeList=n2 BatchHost=n2\n"
    monkeypatch.setattr(commands, "run_command", lambda *_, **__: told)
    assert commands.show("job", "17") == {"JobId": "17", "NodeList": "", "BatchHost": "n1", "Comment": "a"}


def test_a_heterogeneous_job_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm 22.05 lists each part, as job 14+0, 14+1 and so on."""
    squeue_says(monkeypatch, "14+0 N/A\n14+1 N/A\n17+0 N/A\n17+1 N/A\n")
    place = find_place("17", WAITING)
    assert place is not None
    assert (place.position, place.of) == (2, 2)
    squeue_says(monkeypatch, "17+0 N/A\n17+1 N/A\n")
    assert find_place("17", WAITING) is None  # it waits alone


@pytest.mark.parametrize("job", [None, WAITING._replace(state="RUNNING"), WAITING._replace(reason="BeginTime")])
def test_a_job_that_does_not_wait_for_its_turn_has_no_place(
    monkeypatch: pytest.MonkeyPatch, job: SlurmJob | None
) -> None:
    """Slurm is not even asked."""
    squeue_says(monkeypatch, "17 N/A\n")
    assert find_place("17", WAITING) is None
    squeue_says(monkeypatch, "15 N/A\n17 N/A\n")
    assert find_place("17", WAITING) is not None
    assert find_place("16", WAITING) is None
    assert find_place("17", job) is None


def test_without_an_answer_there_is_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """The job's state is told without it."""

    def fail(*_: str) -> str:
        raise SlurmError("no controller")

    monkeypatch.setattr(commands, "run_command", fail)
    assert find_place("17", WAITING) is None


def test_only_what_changes_much_is_told_again() -> None:
    """Half of the way, or a start that is expected much earlier or later."""
    now = time.time()
    told = QueuePlace(8, 20, now + 4000)
    assert QueuePlace(5, 30, now + 4500).is_about(told)
    assert not QueuePlace(4, 20, now + 4000).is_about(told)
    assert not QueuePlace(8, 20, now + 6000).is_about(told)
    assert not QueuePlace(8, 20, math.inf).is_about(told)
    assert not told.is_about(None)
