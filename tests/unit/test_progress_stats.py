"""Progress: parsing lines, measuring the speed of steps, and reporting from a program, with or without a reader."""

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tflaunch_worker.agent.progress import ProgressStats
from tflaunch_worker.training import progress


def known(*lines: str, at: float = 0.0) -> dict[str, object]:
    steps = ProgressStats()
    for line in lines:
        steps.take(line.encode(), at)
    return steps.known(at)


def test_later_lines_add_to_earlier_ones() -> None:
    first = '{"step": 1, "epochs": 3, "metrics": {"loss": 2, "mae": 1}}'
    second = '{"step": 2, "metrics": {"loss": 1.5}}'
    assert known(first, second) == {"step": 2, "epochs": 3, "metrics": {"loss": 1.5, "mae": 1}, "age": 0.0}


@pytest.mark.parametrize(
    "line",
    ["", "step 5", "[1]", "5", "null", '{"step": 1', "[" * 4000, '{"step": 1, "x": "' + "x" * 5000 + '"}', "\udcff"],
)
def test_other_lines_are_ignored(line: str) -> None:
    """Any process may write them."""
    steps = ProgressStats()
    steps.take(line.encode("utf-8", "surrogateescape"), 0.0)
    assert steps.known(0.0) == {}


def test_other_values_are_ignored() -> None:
    """Only finite numbers count, and steps are not negative."""
    counts = '"step": true, "epoch": "2", "epochs": -1, "steps_per_epoch": NaN, "x": 1'
    assert known(f'{{{counts}, "metrics": {{"a": Infinity, "b": [], "c": 1e999}}}}') == {"metrics": {}, "age": 0.0}
    assert known('{"step": 1' + "0" * 400 + "}") == {"metrics": {}, "age": 0.0}


def test_metrics_are_bounded_and_printable() -> None:
    """In number and in length; a null metric is removed."""
    many = json.dumps({"metrics": {f"{number:02}" + "x" * 100: number for number in range(30)}})
    metrics = known(many)["metrics"]
    assert isinstance(metrics, dict)
    assert len(metrics) == 20
    assert {len(name) for name in metrics} == {64}
    assert known('{"metrics": {"loss": 1}}', '{"metrics": {"loss": null}}')["metrics"] == {}
    signs = r'{"metrics": {"a\ud800": 1, "b\u001b[2J": 2, "c\u202e": 3}}'  # the supervisor would refuse the first
    assert known(signs)["metrics"] == {r"a\ud800": 1, r"b\x1b[2J": 2, r"c\u202e": 3}


def test_speed_is_that_of_the_last_seconds() -> None:
    """It falls when no steps arrive."""
    steps = ProgressStats()
    for step in range(100):
        steps.take(b'{"step": %d}' % step, step * 0.5)
    for step in range(100, 500):
        steps.take(b'{"step": %d}' % step, 50 + (step - 100) * 0.05)
    assert steps.known(70)["steps_per_second"] == pytest.approx(20, rel=0.05)
    assert steps.known(170)["steps_per_second"] == pytest.approx(2, rel=0.05)
    assert steps.known(170)["age"] == pytest.approx(100, rel=0.01)
    slow = ProgressStats()
    for step in range(3):
        slow.take(b'{"step": %d}' % step, step * 30.0)
    assert slow.known(61)["steps_per_second"] == pytest.approx(1 / 30)


def test_a_restored_state_begins_anew() -> None:
    steps = ProgressStats()
    for now, step in ((0, 100), (1, 110), (2, 50)):
        steps.take(b'{"step": %d}' % step, float(now))
    assert "steps_per_second" not in steps.known(2)
    steps.take(b'{"step": 60}', 3.0)
    assert steps.known(3)["steps_per_second"] == 10


def test_memory_is_bounded() -> None:
    """However many steps are reported, however fast."""
    steps, many = ProgressStats(), ProgressStats()
    for number in range(10_000):
        steps.take(b'{"step": %d}' % number, number / 4)
        many.take(b'{"step": %d}' % number, number / 1000)
    assert max(len(pickle.dumps(steps)), len(pickle.dumps(many))) < 1500


# ---- from a program


@pytest.fixture
def pipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A pipe as an agent creates it, without earlier reports."""
    path = tmp_path / "progress"
    os.mkfifo(path)
    descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    monkeypatch.setenv("TFLAUNCH_PROGRESS", str(path))
    yield descriptor
    os.close(descriptor)


@pytest.fixture(params=[{}])
def teller(pipe: int, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[progress.Teller]:
    """What `progress.report` writes with: several lines at once, but not all of them."""
    teller = progress.Teller(**request.param)
    monkeypatch.setattr(progress, "_teller", teller)
    yield teller
    teller.close()


EACH = pytest.mark.parametrize("teller", [{"interval": 0}], indirect=True)
"""A line for every report."""


def lines(pipe: int) -> list[dict[str, object]]:
    try:
        return [json.loads(line) for line in os.read(pipe, 1 << 20).splitlines()]
    except BlockingIOError:
        return []


def test_many_reports_are_few_lines_and_nothing_is_lost(pipe: int, teller: progress.Teller) -> None:
    """Values not yet written go into the next line, the last at exit."""
    progress.report(1)
    for step in range(2, 100):
        progress.report(step, epoch=step // 50, loss=step)
    few = lines(pipe)
    teller.flush()
    teller.flush()
    last = lines(pipe)
    assert few[0] == {"step": 1, "metrics": {}}
    assert len(few) + len(last) <= 10
    assert (last or few)[-1:] == [{"step": 99, "epoch": 1, "metrics": {"loss": 99}}]


class Bad:
    def __float__(self) -> float:
        raise RuntimeError("no")


@EACH
def test_nothing_that_is_reported_raises(pipe: int, teller: progress.Teller) -> None:
    progress.report("x", loss=1)  # type: ignore[arg-type]
    progress.report(3, epoch=1, epochs=2, steps_per_epoch=5, loss=Bad(), x=float("nan"), **{"ä" * 100: 1, "\ud800": 2})
    (line,) = lines(pipe)
    assert line.pop("metrics") == {"loss": None, "x": None, "ä" * 64: 1, "?": 2}
    assert line == {"step": 3, "epoch": 1, "epochs": 2, "steps_per_epoch": 5}


def test_a_line_is_never_longer_than_a_pipe_takes_at_once(pipe: int, teller: progress.Teller) -> None:
    progress.report(1, **{f"{number}" + "\U0001f600" * 64: number for number in range(40)})
    (line,) = lines(pipe)
    assert len(json.dumps(line, ensure_ascii=False).encode()) <= 4096
    assert line["step"] == 1


@EACH
def test_a_full_pipe_blocks_nobody(pipe: int, teller: progress.Teller) -> None:
    """The last values are sent when there is room."""
    for step in range(3000):
        progress.report(step, loss=1.0)
    os.read(pipe, 1 << 20)
    teller.flush()
    assert lines(pipe) == [{"step": 2999, "metrics": {"loss": 1.0}}]


@EACH
def test_nobody_listens(pipe: int, teller: progress.Teller, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without a reader, a pipe or the variable, nothing happens."""
    os.mkfifo(tmp_path / "unread")
    before = os.listdir("/proc/self/fd")
    for place in (tmp_path / "unread", tmp_path / "missing", tmp_path):
        monkeypatch.setenv("TFLAUNCH_PROGRESS", str(place))
        progress.report(1)
        assert os.listdir("/proc/self/fd") == before
    monkeypatch.delenv("TFLAUNCH_PROGRESS")
    progress.report(2)
    assert lines(pipe) == []


def test_a_fork_does_not_tell_for_its_parent(pipe: int) -> None:
    """The last report is written when a program exits."""
    program = (
        "import os, sys\n"
        "from tflaunch_worker.training.progress import report\n"
        "report(1); report(2)\n"
        "if os.fork() == 0: sys.exit()\n"
        "os.wait(); report(3)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
    assert [line["step"] for line in lines(pipe)] == [1, 3]
