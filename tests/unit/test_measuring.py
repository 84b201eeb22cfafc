"""What a host tells of its tasks: their processes and usage, when output was read, its gaps, and what was stored."""

from math import inf
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from support.job_history import HERE, History
from support.specs import clustered
from tflaunch.agents.output import Output
from tflaunch.core import event_records, states
from tflaunch.core.events import LinkLost, TaskExited
from tflaunch.core.states import Measure, Progress
from tflaunch.explain.status import StatusInputs, status
from tflaunch.mailbox import Mailbox
from tflaunch.store.log_sink import LogSink, OutputSink
from tflaunch.store.log_writer import Marks
from tflaunch_worker.agent import task_output
from tflaunch_worker.agent.task_output import Times
from tflaunch_worker.inspect import usage
from tflaunch_worker.procfs import Process

TASK = "worker:0"

# ---- whose processes


def test_children_and_members_of_the_session_are_the_tasks() -> None:
    parents = {1: 0, 10: 1, 20: 10, 21: 20, 22: 21, 23: 1, 30: 10, 31: 30, 40: 1}
    sessions = {21: 20, 22: 22, 23: 20, 31: 30}
    processes = {pid: Process(parent, sessions.get(pid, pid), 1.0, 100) for pid, parent in parents.items()}
    for order in (sorted(processes), sorted(processes, reverse=True)):
        owners = usage.owners_of({pid: processes[pid] for pid in order}, {20: "a", 30: "b"})
        assert owners == {20: "a", 21: "a", 22: "a", 23: "a", 30: "b", 31: "b"}


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


# ---- what a link says


def test_measures_are_read() -> None:
    sent = {"step": 3, "metrics": {"loss": 0.5, "x" * 90: 1}, "age": 0.1, "later": "field"}
    said = {TASK: {"attempt": 1, "cpu_seconds": 1.5, "rss_bytes": 5, "progress": sent}, "ps:0": {"attempt": 0}}
    progress = Progress(3, None, None, None, None, {"loss": 0.5, "x" * 61 + "...": 1}, 0.1)
    assert states.read_measures(said) == {
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
        states.read_measures(said)


def test_a_task_that_has_just_begun_or_is_cut_off_has_no_percentage() -> None:
    """0.8 s of CPU are those of a start. What it uses now is not known: no curve goes on, and no time is left."""
    history = History(clustered({"worker": 1})).start()
    said = {"attempt": 0, "cpu_seconds": 0.8, "rss_bytes": 10, "progress": {"step": 7, "steps_per_second": 2.0}}
    measured = states.read_measures({TASK: said})
    for lived, percent in ((0.01, None), (0.4, None), (2.0, 40.0)):
        now = history.job.tasks[TASK].since + lived
        (task,) = status(history.job, StatusInputs(0, "logs", True, now, measured)).tasks
        assert task.cpu_percent == percent
    history.happens(LinkLost(HERE, "cut"))
    (task,) = status(history.job, StatusInputs(0, "logs", True, history.now + 9, measured)).tasks
    assert (task.state, task.step) == ("disconnected", 7)
    assert (task.cpu_percent, task.rss_bytes, task.steps_per_second) == (None, None, None)


def test_an_event_has_the_metrics_of_a_measurement() -> None:
    """As many, with the same names, whatever an agent sends; all can be shown, and encoded for Prometheus."""
    metrics = {"a\x1b[2J\nb": 2, "\u202e": 1e30, "loss\ud800": 1, **{f"{number:064}": number for number in range(30)}}
    said = {"kind": "task_exited", "host": "h", "task": TASK, "attempt": 0, "code": 0, "signal": None, "at": 1.0}
    event = event_records.from_record({**said, "metrics": metrics})
    assert isinstance(event, TaskExited)
    progress = states.read_measures({TASK: {"attempt": 0, "progress": {"metrics": metrics}}})[TASK].progress
    assert progress is not None
    assert event.metrics == progress.metrics
    assert list(event.metrics)[:3] == [r"a\x1b[2J\nb", r"\u202e", r"loss\ud800"]
    assert len(event.metrics) == 20


class Log:
    """A log of which an earlier supervisor has written ``size`` bytes, None if there was none."""

    def __init__(self, size: int | None = None) -> None:
        self.said: list[str] = []
        self.times: list[Any] = []
        self._size = size

    def write(self, task: str, attempt: int, data: bytes, times: Any, done: object) -> None:
        self.said.append(data.decode())
        self.times.append(times)

    def kept(self, task: str, attempt: int) -> int | None:
        return self._size

    def lose(self, task: str, attempt: int, size: int) -> None:
        self.said.append(f"{size} are missing")

    def end(self, task: str, attempt: int) -> None:
        self.said.append("end")


def output(log: Log) -> Output:
    """Return the output of a host whose clock is 100 s ahead."""
    return Output(log, None, lambda: None, lambda theirs: theirs - 100, lambda *_: inf)  # type: ignore[arg-type]


def frame(kind: str, offset: int, **more: Any) -> dict[str, Any]:
    return {"kind": kind, "task": TASK, "attempt": 0, "offset": offset, **more}


def test_times_are_by_our_clock_and_by_position() -> None:
    """Even if part of the output was already known."""
    log = Log()
    heard = output(log)
    heard.read(frame("output", 0, times=[[0, 101.0], [4, 102.0]]), b"abcdef")
    heard.read(frame("output", 2, times=[[2, 101.0], [4, 102.0], [7, 103.0]]), b"cdefghi")
    heard.read(frame("output", 0, times=[[0, 101.0]]), b"abcdef")
    assert log.said == ["abcdef", "ghi"]
    assert log.times == [[(0, 1.0), (4, 2.0)], [(0, 2.0), (1, 3.0)]]


@pytest.mark.parametrize(
    "times",
    [
        [], None, 5, "times", [[]], [[1, 1.0]], [[0, 1.0], [0, 2.0]], [[0, 1.0], [3, 2.0], [2, 3.0]],
        [[0, 1.0], [6, 2.0]], [[0, "1"]], [[0, None]], [[0, 1]], [["0", 1.0]], [[False, 1.0]], [[0, float("nan")]],
        [[0, 1.0, 2]], [[-1, 1.0]], [0, 1.0], {"0": 1.0},
    ],
)  # fmt: skip
def test_times_that_are_none_are_refused(times: object) -> None:
    log = Log()
    with pytest.raises((ValueError, TypeError)):
        output(log).read(frame("output", 0, times=times), b"abcdef")
    assert log.said == []


@pytest.mark.parametrize("size", [0, 40])
def test_what_an_earlier_supervisor_could_not_store_is_missing(size: int) -> None:
    """It has acknowledged 100 bytes, and the disk was full: the agent has discarded them."""
    log = Log(size)
    heard = output(log)
    heard.read(frame("output", 100, times=[[100, 1.0]]), b"more")
    heard.read(frame("output_ended", 104), b"")
    assert log.said == [f"{100 - size} are missing", "more", "end"]
    ended = Log(size)
    output(ended).read(frame("output_ended", 100), b"")
    assert ended.said == [f"{100 - size} are missing", "end"], "nothing of it comes again but its end"


@pytest.mark.parametrize("kind", ["output", "output_ended"])
@pytest.mark.parametrize("is_first", [True, False])
def test_no_agent_leaves_out_what_was_never_acknowledged(kind: str, is_first: bool) -> None:
    """Without an earlier supervisor, and after what this one has taken."""
    heard = output(Log(None if is_first else 0))
    if not is_first:
        heard.read(frame("output", 0, times=[[0, 1.0]]), b"some")
    with pytest.raises(ValueError, match="goes on at byte 100"):
        heard.read(frame(kind, 100, times=[[100, 1.0]]), b"more" if kind == "output" else b"")


def sink(path: Path) -> LogSink:
    """Return the sink of the next supervisor, which expects output of the first attempt."""
    sink = LogSink(path, Marks(path / "marks.jsonl"), path / "times", Mock(spec=OutputSink), Mailbox())
    sink.begin(TASK, 0)
    return sink


def test_what_an_earlier_supervisor_kept_is_what_the_log_has(tmp_path: Path) -> None:
    """Also with lines of ours between. For the first, output has to begin at its first byte.

    Of an attempt that was acknowledged and not stored, as the disk was full when it began, not even a line of ours
    tells.
    """
    first = sink(tmp_path)
    assert first.kept(TASK, 0) is None
    first.write(TASK, 0, b"hello\n", [(0, 0.0)], lambda: None)
    first.lose(TASK, 0, 10)
    assert sink(tmp_path).kept(TASK, 0) == 16
    assert sink(tmp_path).kept(TASK, 1) == 0
