"""Equal lines that many tasks write at once are shown once; the lines of a task keep their order."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tflaunch.store.log_line import Line
from tflaunch.tui import dedupe as log_fold
from tflaunch.tui.dedupe import Folded, Folder

pytestmark = pytest.mark.unit


def line(time: float, task: int, text: str) -> Line:
    """Return a line of a worker."""
    return Line(time, f"worker:{task}", 0, text.encode())


def fold(lines: Iterable[Line], window: float = 1.0) -> Iterator[Folded]:
    """Fold lines, and yield them as they come."""
    folder = Folder(window)
    for one in lines:
        yield from folder.feed(one)
    yield from folder.flush()


def folded(*lines: Line) -> list[tuple[str, str, int]]:
    """Return task, text and the number of other tasks with the same line."""
    return [(told.line.task, told.line.text.decode(), len(told.others)) for told in fold(lines)]


def test_the_same_words_of_many_tasks_are_told_once() -> None:
    lines = [line(task / 100, task, "hello") for task in range(64)]
    assert folded(*lines, line(1, 3, "bye")) == [("worker:0", "hello", 63), ("worker:3", "bye", 0)]


def test_later_words_are_told_again() -> None:
    lines = [line(0, 0, "x"), line(0.9, 1, "x"), line(1.1, 2, "x")]
    assert folded(*lines) == [("worker:0", "x", 1), ("worker:2", "x", 0)]
    assert [len(told.others) for told in fold(lines, window=2)] == [2]


def test_a_task_that_says_the_same_twice_is_told_twice() -> None:
    lines = [line(0, 0, "a"), line(0.1, 0, "a"), line(0.2, 1, "a"), line(0.3, 1, "a"), line(0.4, 1, "a")]
    assert folded(*lines) == [("worker:0", "a", 1), ("worker:0", "a", 1), ("worker:1", "a", 0)]


def test_no_tasks_lines_change_places() -> None:
    lines = [line(0, 0, "a"), line(0, 0, "b"), line(0.1, 1, "b"), line(0.1, 1, "a")]
    assert folded(*lines) == [("worker:0", "a", 0), ("worker:0", "b", 1), ("worker:1", "a", 0)]


def test_following() -> None:
    folder = Folder()
    assert folder.feed(line(0, 0, "a")) == []
    assert folder.feed(line(0.5, 1, "a")) == []
    assert [(told.line.text, told.others) for told in folder.feed(line(2, 0, "b"))] == [(b"a", ("worker:1",))]
    assert [told.line.text for told in folder.flush()] == [b"b"]
    assert folder.flush() == []


def test_endless_input_is_folded_as_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_fold, "_MOST_HELD", 10)
    endless = (line(0.0, 0, str(number)) for number in itertools.count())
    assert [told.line.text for told in itertools.islice(fold(endless), 3)] == [b"0", b"1", b"2"]


LINES = st.lists(st.tuples(st.floats(-0.5, 1.5), st.integers(0, 3), st.sampled_from("abc")), max_size=40)


@given(LINES)
def test_every_line_counts_once(steps: list[tuple[float, int, str]]) -> None:
    """Regardless of clocks; lines that are not folded keep their order."""
    times = itertools.accumulate(step for step, _, _ in steps)
    lines = [line(time, task, text) for time, (_, task, text) in zip(times, steps, strict=True)]
    told = list(fold(lines))
    counts: Counter[bytes] = Counter()
    for first in told:
        counts[first.line.text] += 1 + len(first.others)
    assert counts == Counter(one.text for one in lines)
    places = {id(one): place for place, one in enumerate(lines)}
    assert [places[id(first.line)] for first in told] == sorted(places[id(first.line)] for first in told)
