"""Measurements: the processes of each task, when output was read, and checks of what a link says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.job_history import HERE, History
from support.specs import clustered
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
    parents = {1: 0, 10: 1, 20: 10, 21: 20, 22: 21, 23: 1, 30: 10, 31: 30, 40: 1}
    sessions = {21: 20, 22: 22, 23: 20, 31: 30}
    processes = {pid: Process(parent, sessions.get(pid, pid), 1.0, 100) for pid, parent in parents.items()}
    for order in (sorted(processes), sorted(processes, reverse=True)):
        owners = usage.owners_of({pid: processes[pid] for pid in order}, {20: "a", 30: "b"})
        assert owners == {20: "a", 21: "a", 22: "a", 23: "a", 30: "b", 31: "b"}


def test_gpus_are_those_on_which_a_task_runs() -> None:
    figures: dict[str, dict[str, float]] = {"a": {}, "b": {}, "c": {}}
    processes = [["20", "G1", "100"], ["21", "G2", "50"], ["30", "G2", "[N/A]"], ["99", "G1", "7"], ["x", "G", "1"]]
    rows = {"processes": processes, "gpus": [["G1", "80"], ["G2", "20"], ["G3", "[N/A]"]]}
    usage.add_gpus(figures, {20: "a", 21: "a", 30: "b"}, rows)
    assert figures == {"a": {"gpu_bytes": 150 * 2**20, "gpu_percent": 50.0}, "b": {"gpu_percent": 20.0}, "c": {}}


# ---- when bytes were read


def test_notes_are_as_fine_as_needed_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Output that follows within milliseconds shares the timestamp of the output before it.

    Old output has coarser timestamps, never later than when it was read.
    """
    kept = Times()
    for offset, now in ((0, 1.0), (10, 1.02), (20, 1.06), (30, 2.0)):
        kept.note(offset, now)
    assert kept.between(0, 40) == [(0, 1.0), (20, 1.06), (30, 2.0)]
    assert kept.between(5, 30) == [(5, 1.0), (20, 1.06)]
    kept.release(25)
    assert kept.between(25, 40) == [(25, 1.06), (30, 2.0)]
    monkeypatch.setattr(task_output, "MOST", 8)
    kept = Times()
    for number in range(1000):
        kept.note(number * 10, float(number))
    notes = kept.between(0, 10_000)
    assert (len(notes) <= 9, notes[0]) == (True, (0, 0.0))
    assert all(seconds == offset / 10 for offset, seconds in notes)


@given(st.lists(st.tuples(st.integers(1, 50), st.floats(0, 3)), min_size=1), st.data())
def test_every_byte_has_a_time(writes: list[tuple[int, float]], data: st.DataObject) -> None:
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


def test_measures_are_read() -> None:
    sent = {"step": 3, "metrics": {"loss": 0.5, "x" * 90: 1}, "age": 0.1, "later": "field"}
    said = {TASK: {"attempt": 1, "cpu_seconds": 1.5, "rss_bytes": 5, "progress": sent}, "ps:0": {"attempt": 0}}
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
    """As many, with the same names, whatever an agent sends; all can be shown, and encoded for Prometheus."""
    metrics = {"a\x1b[2J\nb": 2, "\u202e": 1e30, "loss\ud800": 1, **{f"{number:064}": number for number in range(30)}}
    said = {"kind": "task_exited", "host": "h", "task": TASK, "attempt": 0, "code": 0, "signal": None, "at": 1.0}
    event = event_records.from_record({**said, "metrics": metrics})
    assert isinstance(event, TaskExited)
    progress = measures.from_wire({TASK: {"attempt": 0, "progress": {"metrics": metrics}}})[TASK].progress
    assert progress is not None
    assert event.metrics == progress.metrics
    assert list(event.metrics)[:3] == [r"a\x1b[2J\nb", r"\u202e", r"loss\ud800"]
    assert len(event.metrics) == 20
