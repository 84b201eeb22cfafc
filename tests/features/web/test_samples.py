"""Samples for charts: bounded, continued by the next recorder, and taken by one process only."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from support.statuses import RUN, TASK
from tflaunch.explain.run_status import Status
from tflaunch.features.web.samples import SampleRecorder, read_samples
from tflaunch.store.run_dir import SAMPLES_NAME

pytestmark = pytest.mark.unit


def using(percent: float) -> Status:
    """Return the status of a run whose only task uses this much."""
    return RUN._replace(tasks=(TASK._replace(cpu_percent=percent, rss_bytes=1000, metrics={"loss": 0.5}),))


def test_samples_are_read_as_they_were_recorded(tmp_path: Path) -> None:
    """At most one in two seconds, and none of tasks whose usage is unknown."""
    recorder = SampleRecorder(tmp_path, 1)
    for second in range(5):
        recorder.add(using(second), 100.0 + second)
    recorder.add(RUN._replace(tasks=(TASK,)), 200.0)
    assert read_samples(tmp_path) == [
        {"time": 100.0 + second, "tasks": {"worker:0": [None, 0.5, second, 1000]}} for second in (0, 2, 4)
    ]


def test_a_long_run_is_thinned_out(tmp_path: Path) -> None:
    """Between 200 and 400 samples, evenly from the first to the last hour; the same in the file."""
    recorder = SampleRecorder(tmp_path, 1)
    for second in range(0, 20_000, 2):
        recorder.add(using(1), float(second))
    times = [sample["time"] for sample in read_samples(tmp_path)]
    assert 200 <= len(times) <= 401
    assert times[0] == 0
    assert times[-1] >= 19_900
    assert len({after - before for before, after in itertools.pairwise(times)}) == 1


def test_the_next_recorder_goes_on(tmp_path: Path) -> None:
    """After the first has ended; until then there is no second."""
    recorder = SampleRecorder(tmp_path, 1)
    recorder.add(using(1), 100.0)
    with pytest.raises(BlockingIOError):
        SampleRecorder(tmp_path, 1)
    recorder.close()
    SampleRecorder(tmp_path, 1).add(using(2), 110.0)
    assert [sample["time"] for sample in read_samples(tmp_path)] == [100.0, 110.0]


def test_recording_begins_once_the_file_can_be_written(tmp_path: Path) -> None:
    """An attempt that fails does not keep others from recording."""
    obstacle = (tmp_path / SAMPLES_NAME).with_suffix(".new")
    obstacle.mkdir()
    with pytest.raises(IsADirectoryError):
        SampleRecorder(tmp_path, 1)
    obstacle.rmdir()
    SampleRecorder(tmp_path, 1).add(using(1), 100.0)
    assert len(read_samples(tmp_path)) == 1


def test_damaged_samples_are_left_out(tmp_path: Path) -> None:
    """What a crash or an editor left; the rest is shown."""
    lines = ['{"time": 1, "tasks": {}}', "{", '{"time": "x", "tasks": {}}', "[]", '{"time": 2, "tasks": {}}', '{"ti']
    (tmp_path / SAMPLES_NAME).write_text("\n".join(lines))
    assert [sample["time"] for sample in read_samples(tmp_path)] == [1, 2]


def test_a_run_without_samples_has_none(tmp_path: Path) -> None:
    """As most have."""
    assert read_samples(tmp_path) == []
