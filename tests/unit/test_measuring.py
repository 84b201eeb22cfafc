"""Measurements and timestamps: processes per task, times of output, and validation of messages from a link."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.job_history import HERE, History
from support.specs import clustered
from tflaunch.agents.output import Output
from tflaunch.core import event_records, measures
from tflaunch.core.events import LinkLost, TaskExited
from tflaunch.core.measures import Measure, Progress
from tflaunch.explain.status import StatusInputs, status
from tflaunch_worker.agent import task_output
from tflaunch_worker.agent.task_output import Times
from tflaunch_worker.inspect import usage
from tflaunch_worker.procfs import Process

pytestmark = pytest.mark.unit

TASK = "worker:0"

# ---- whose processes


def test_children_and_members_of_the_session_are_the_tasks() -> None:
    """Even those that changed their parent or their session."""
    parents = {1: 0, 10: 1, 20: 10, 21: 20, 22: 21, 23: 1, 30: 10, 31: 30, 40: 1}
    sessions = {21: 20, 22: 22, 23: 20, 31: 30}
    processes = {pid: Process(parent, sessions.get(pid, pid), 1.0, 100) for pid, parent in parents.items()}
    for order in (sorted(processes), sorted(processes, reverse=True)):
        owners = usage.owners_of({pid: processes[pid] for pid in order}, {20: "a", 30: "b"})
        assert owners == {20: "a", 21: "a", 22: "a", 23: "a", 30: "b", 31: "b"}


def test_gpus_are_those_on_which_a_task_runs() -> None:
    """What the driver does not report is unknown."""
    figures: dict[str, dict[str, float]] = {"a": {}, "b": {}, "c": {}}
    rows = {
        "processes": [
            ["20", "G1", "100"],
            ["21", "G2", "50"],
            ["30", "G2", "[N/A]"],
            ["99", "G1", "7"],
            ["x", "G", "1"],
        ],
        "gpus": [["G1", "80"], ["G2", "20"], ["G3", "[N/A]"]],
    }
    usage.add_gpus(figures, {20: "a", 21: "a", 30: "b"}, rows)
    assert figures == {
        "a": {"gpu_bytes": 150 * 1024 * 1024, "gpu_percent": 50.0},
        "b": {"gpu_percent": 20.0},
        "c": {},
    }


# ---- when bytes were read


def test_notes_are_as_fine_as_needed() -> None:
    """Output that follows within milliseconds shares the timestamp of the output before it."""
    kept = Times()
    for offset, now in ((0, 1.0), (10, 1.02), (20, 1.06), (30, 2.0)):
        kept.note(offset, now)
    assert kept.between(0, 40) == [(0, 1.0), (20, 1.06), (30, 2.0)]
    assert kept.between(5, 30) == [(5, 1.0), (20, 1.06)]
    kept.release(25)
    assert kept.between(25, 40) == [(25, 1.06), (30, 2.0)]


def test_notes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Old output then has coarser timestamps, never later than when it was read."""
    monkeypatch.setattr(task_output, "MOST", 8)
    kept = Times()
    for number in range(1000):
        kept.note(number * 10, float(number))
    notes = kept.between(0, 10_000)
    assert len(notes) <= 9
    assert notes[0] == (0, 0.0)
    assert all(seconds == offset / 10 for offset, seconds in notes)


@given(st.lists(st.tuples(st.integers(1, 50), st.floats(0, 3)), min_size=1), st.data())
def test_every_byte_has_a_time(writes: list[tuple[int, float]], data: st.DataObject) -> None:
    """Each has that of the note before it, whatever was released."""
    kept, end, now = Times(), 0, 0.0
    moments: list[float] = []
    for size, wait in writes:
        now += wait
        kept.note(end, now)
        end += size
        moments += [now] * size
    start = data.draw(st.integers(0, end - 1))
    kept.release(data.draw(st.integers(0, start)))
    notes = kept.between(start, end)
    assert notes[0][0] == start
    for offset in range(start, end):
        told = [seconds for at, seconds in notes if at <= offset][-1]
        assert moments[offset] - task_output.INTERVAL - 1e-9 < told <= moments[offset]


# ---- what a link says


class Kept:
    """A sink for output."""

    def __init__(self) -> None:
        self.written: list[tuple[bytes, list[tuple[int, float]]]] = []

    def write(self, task: str, attempt: int, data: bytes, times: list[tuple[int, float]], done: Any) -> None:
        """Accept output, which is acknowledged later."""
        self.written.append((data, times))

    def kept(self, task: str, attempt: int) -> int | None:
        """Return that nothing was kept earlier."""
        return None

    def lose(self, task: str, attempt: int, size: int) -> None:
        """Accept a gap."""

    def end(self, task: str, attempt: int) -> None:
        """Accept the end."""


def output(words: Kept) -> Output:
    """Return the output handler of a host whose clock is 100 s ahead."""
    return Output(words, lambda: None, lambda theirs: theirs - 100, lambda *_: True)


def frame(offset: int, times: Any) -> dict[str, Any]:
    """Return an ``output`` frame."""
    return {"kind": "output", "task": TASK, "attempt": 0, "offset": offset, "times": times}


def test_times_are_by_our_clock_and_by_position() -> None:
    """Even if part of the output was already known."""
    kept = Kept()
    heard = output(kept)
    heard.read(frame(0, [[0, 101.0], [4, 102.0]]), b"abcdef")
    heard.read(frame(2, [[2, 101.0], [4, 102.0], [7, 103.0]]), b"cdefghi")
    heard.read(frame(0, [[0, 101.0]]), b"abcdef")
    assert kept.written == [(b"abcdef", [(0, 1.0), (4, 2.0)]), (b"ghi", [(0, 2.0), (1, 3.0)])]


@pytest.mark.parametrize(
    "times",
    [
        [], None, 5, "times", [[]], [[1, 1.0]], [[0, 1.0], [0, 2.0]], [[0, 1.0], [3, 2.0], [2, 3.0]],
        [[0, 1.0], [6, 2.0]], [[0, "1"]], [[0, None]], [[0, 1]], [["0", 1.0]], [[False, 1.0]], [[0, float("nan")]],
        [[0, 1.0, 2]], [[-1, 1.0]], [0, 1.0], {"0": 1.0},
    ],
)  # fmt: skip
def test_times_that_are_none_are_refused(times: object) -> None:
    """Data from a link is validated before use."""
    kept = Kept()
    with pytest.raises((ValueError, TypeError)):
        output(kept).read(frame(0, times), b"abcdef")
    assert kept.written == []


def test_measures_are_read() -> None:
    """Unknown values are None."""
    said = {
        TASK: {
            "attempt": 1,
            "cpu_seconds": 1.5,
            "rss_bytes": 5,
            "progress": {"step": 3, "metrics": {"loss": 0.5, "x" * 90: 1}, "age": 0.1, "later": "field"},
        },
        "ps:0": {"attempt": 0},
    }
    progress = Progress(3, None, None, None, None, {"loss": 0.5, "x" * 61 + "...": 1}, 0.1)
    assert measures.from_wire(said) == {
        TASK: Measure(1, 1.5, 5, None, None, progress),
        "ps:0": Measure(0, None, None, None, None, None),
    }


@pytest.mark.parametrize(
    "said",
    [
        None, [], {TASK: None}, {TASK: {}}, {TASK: {"attempt": "0"}}, {TASK: {"attempt": True}},
        {TASK: {"attempt": 0, "cpu_seconds": "1"}}, {TASK: {"attempt": 0, "rss_bytes": float("inf")}},
        {TASK: {"attempt": 0, "gpu_bytes": True}}, {TASK: {"attempt": 0, "gpu_percent": 10**400}},
        {TASK: {"attempt": 0, "progress": 5}}, {TASK: {"attempt": 0, "progress": {"metrics": []}}},
        {TASK: {"attempt": 0, "progress": {"step": "x"}}}, {TASK: {"attempt": 0, "progress": {"metrics": {"a": "b"}}}},
    ],
)  # fmt: skip
def test_measures_that_are_none_are_refused(said: object) -> None:
    """Any invalid input is refused."""
    with pytest.raises(ValueError, match="must be"):
        measures.from_wire(said)


@pytest.mark.parametrize(("lived", "percent"), [(0.01, None), (0.4, None), (2.0, 40.0)])
def test_a_task_that_has_just_begun_has_no_percentage(lived: float, percent: float | None) -> None:
    """Its 0.8 s of CPU were those of a start, in less than a measurement."""
    history = History(clustered({"worker": 1}))
    history.start()
    began = history.job.tasks[TASK].since
    measured = {TASK: Measure(0, 0.8, None, None, None, None)}
    (task,) = status(history.job, StatusInputs(0, "logs", True, began + lived, measured)).tasks
    assert task.cpu_percent == percent


def test_a_task_that_is_cut_off_has_its_last_progress_and_no_usage() -> None:
    """What it uses now is not known: no curve goes on, and no time is left."""
    history = History(clustered({"worker": 1})).start()
    history.happens(LinkLost(HERE, "cut"))
    said = {"attempt": 0, "cpu_seconds": 5.0, "rss_bytes": 10, "progress": {"step": 7, "steps_per_second": 2.0}}
    measured = measures.from_wire({TASK: said})
    (task,) = status(history.job, StatusInputs(0, "logs", True, history.now + 9, measured)).tasks
    assert (task.state, task.step) == ("disconnected", 7)
    assert (task.cpu_percent, task.rss_bytes, task.steps_per_second) == (None, None, None)


def test_an_event_has_the_metrics_of_a_measurement() -> None:
    """As many, with the same names, whatever an agent sends."""
    metrics = {"a\x1b[2J\nb": 2, "\u202e": 1e30, **{f"{number:064}": number for number in range(30)}}
    said = {"kind": "task_exited", "host": "h", "task": TASK, "attempt": 0, "code": 0, "signal": None, "at": 1.0}
    event = event_records.from_record({**said, "metrics": metrics})
    assert isinstance(event, TaskExited)
    progress = measures.from_wire({TASK: {"attempt": 0, "progress": {"metrics": metrics}}})[TASK].progress
    assert progress is not None
    assert event.metrics == progress.metrics
    assert list(event.metrics)[:2] == [r"a\x1b[2J\nb", r"\u202e"]
    assert len(event.metrics) == 20


def test_names_of_metrics_can_be_shown_and_encoded() -> None:
    """They are shown on terminals and sent to Prometheus, which gets no answer at all if one cannot be encoded."""
    said = {TASK: {"attempt": 0, "progress": {"metrics": {"loss\ud800": 1, "a\x1b[2J\nb": 2}}}}
    progress = measures.from_wire(said)[TASK].progress
    assert progress is not None
    assert progress.metrics == {r"loss\ud800": 1, r"a\x1b[2J\nb": 2}
