"""What tasks report and use over time: recorded from the start on, bounded, continued by the next supervisor."""

import itertools
import json
import time
from pathlib import Path

import pytest

from support.launch import Launch
from support.waiting import PATIENCE, wait_until
from tflaunch.features.history.history_recorder import HistoryWriter
from tflaunch.store.history import Figures, Moment, last_moment, read_history
from tflaunch.store.run_dir import HISTORY_NAME

TRAINING = """
i=0
while :; do
  i=$((i + 1))
  of='"epochs": 2, "steps_per_epoch": 3000'
  echo "{\\"step\\": $i, $of, \\"metrics\\": {\\"loss\\": 0.5}}" > $TFLAUNCH_PROGRESS
  [ -e stop ] && exit 3
  sleep 0.1
done"""


def moment(at: float, cpu: float = 1.0, tasks: int = 1) -> Moment:
    figures = Figures(step=int(at), cpu_percent=cpu, rss_bytes=1000, metrics={"loss": 0.5})
    return Moment(at, {f"worker:{number}": figures for number in range(tasks)})


@pytest.mark.unit
class TestFile:
    def test_moments_are_read_as_they_were_written(self, tmp_path: Path):
        assert (read_history(tmp_path), last_moment(tmp_path)) == ([], None)
        written = [moment(100.0), Moment(102.0, {"ps:0": Figures()}), moment(104.5, 2.5)]
        writer = HistoryWriter(tmp_path)
        for each in written:
            writer.add(each)
        assert read_history(tmp_path) == written
        assert last_moment(tmp_path) == written[-1]
        assert (tmp_path / HISTORY_NAME).stat().st_mode & 0o777 == 0o600

    @pytest.mark.parametrize("tasks", [1, 64, 1000])
    def test_a_long_run_is_thinned_out(self, tmp_path: Path, tasks: int):
        """Evenly, from the first to the last hour, within 2,000 moments and 1 MB; the next writer goes on so."""
        writer, now = HistoryWriter(tmp_path), 0.0
        while now < 30_000:
            writer.add(moment(now, tasks=tasks))
            now += writer.interval
        times = [each.time for each in read_history(tmp_path)]
        assert (tmp_path / HISTORY_NAME).stat().st_size <= 1_000_000
        assert (100 if tasks > 1 else 1000) <= len(times) <= 2000
        assert times[0] == 0
        assert times[-1] >= 30_000 - 2 * writer.interval
        assert {after - before for before, after in itertools.pairwise(times)} <= {writer.interval, writer.interval / 2}
        assert HistoryWriter(tmp_path).interval in (writer.interval, writer.interval / 2)

    def test_a_disk_without_room_costs_moments_only(self, tmp_path: Path):
        writer = HistoryWriter(tmp_path)
        obstacle = (tmp_path / HISTORY_NAME).with_suffix(".new")
        obstacle.mkdir()
        with pytest.raises(IsADirectoryError):
            writer.add(moment(100.0))
        obstacle.rmdir()
        writer.add(moment(102.0))
        writer.add(moment(104.0))
        assert [each.time for each in read_history(tmp_path)] == [100.0, 102.0, 104.0]

    def test_damaged_lines_are_left_out(self, tmp_path: Path):
        damaged = ("{", '["x", {}]', "[]", '[2, {"a": 3}]', '[2, {"a": [1,2,3,4,5,6,{},8,9]}]', '[2, {"a": ["1"]}]')
        metrics = ('[2, {"a": [1,2,3,4,5,6,{"loss":"x"}]}]', '[2, {"a": [1,2,3,4,5,6,{"loss":1e999}]}]')
        lines = ["[1, {}]", *damaged, *metrics, "[3, {}]", '["ti']
        (tmp_path / HISTORY_NAME).write_text("\n".join(lines))
        assert [each.time for each in read_history(tmp_path)] == [1, 3]
        assert last_moment(tmp_path) == Moment(3, {})
        # Of an earlier version: fewer fields, and names that cannot be shown.
        (tmp_path / HISTORY_NAME).write_text('[1, {"a": [5, null, null, 6, null, null, {"\\u001b[2J": 7}]}]\n')
        figures = Figures(step=5, rss_bytes=6, metrics={r"\x1b[2J": 7})
        assert read_history(tmp_path) == [Moment(1, {"a": figures})]


def moments(launch: Launch, least: int) -> list[Moment]:
    """Return the history of the only run, once it has that many moments."""
    wait_until(lambda: len(read_history(launch.run_directory())) >= least)
    return read_history(launch.run_directory())


@pytest.mark.cli
def test_a_run_that_nobody_looks_at_has_its_curves(launch: Launch) -> None:
    spec = launch.shell(TRAINING, strategy="none", restart={"max": 1, "backoff": ["9h", "9h"]})
    launch.succeed("up", "-d", spec)
    first = moments(launch, 2)[0].tasks["worker:0"]
    assert first.step
    assert first.rss_bytes
    (listed,) = json.loads(launch.run("ls", "--json").stdout)
    assert listed["step"] > first.step
    assert listed["metrics"] == {"loss": 0.5}
    assert listed["steps"] == 6000
    assert listed["expected_end"] > time.time() + 60  # clock: a moment that the program has reckoned
    assert (listed["hosts"], listed["host"], listed["job"]) == (1, "localhost", "job")
    launch.kill_supervisor()
    (lost,) = json.loads(launch.run("ls", "--json").stdout)
    assert (lost["state"], lost["expected_end"]) == ("lost", None)
    before = len(moments(launch, 2))
    resumed = launch.start("up", "--resume", launch.run_directory().name)
    moments(launch, before + 2)
    (launch.directory / "stop").touch()
    wait_until(lambda: launch.status()["state"] == "backing_off", resumed)
    (stands,) = json.loads(launch.run("ls", "--json").stdout)
    assert (stands["state"], stands["steps"], stands["expected_end"]) == ("backing_off", 6000, None)
    launch.succeed("down")
    resumed.communicate(timeout=PATIENCE)
    found = read_history(launch.run_directory())
    steps = [each.tasks["worker:0"].step or 0 for each in found if "worker:0" in each.tasks]
    assert steps == sorted(steps)
    assert all(figures.rss_bytes is None for figures in found[-1].tasks.values()), "what was reported before the exit"
