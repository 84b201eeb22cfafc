"""Logs are read as the tasks wrote them, merged by time, from any position, while they grow."""

import json
import os
import tracemalloc
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tflaunch.store import log_reader
from tflaunch.store.log_reader import LogReader
from tflaunch.store.log_writer import Marks, TaskLog, path_of, times_of

A, B = "worker:0", "worker:1"
NOW = 1_800_000_000.0


class Place:
    def __init__(self, path: Path, tasks: tuple[str, ...] = (A, B)) -> None:
        self.path = path
        self.tasks = tasks
        self.marks = Marks(self.path / "marks.jsonl")
        self.logs = {
            task: TaskLog(task, path_of(self.path, task), self.marks, times_of(self.path / "times", task))
            for task in self.tasks
        }

    def close(self) -> None:
        for log in self.logs.values():
            log.close()
        self.marks.close()

    def say(self, task: str, data: bytes, seconds: float = 0.0) -> None:
        """Write output of a task, ``seconds`` after NOW."""
        self.logs[task].append(data, [(0, NOW + seconds)])

    def again(self, task: str, attempt: int, seconds: float = 0.0) -> None:
        self.logs[task].begin_attempt(attempt, NOW + seconds)

    def reader(self) -> LogReader:
        return LogReader(self.path, self.path, self.tasks)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def texts(lines: object) -> list[str]:
    """Return lines as text, each prefixed with the number of its task."""
    assert hasattr(lines, "__iter__")
    return [f"{line.task[-1]} {line.text.decode()}" for line in lines]


def test_lines_are_merged_by_time(place: Place) -> None:
    """By when they were written, not by when they arrived."""
    place.say(A, b"one\n", 1)
    place.say(A, b"three\n", 3)
    place.say(B, b"zero\n", 0)
    place.say(B, b"two\nand ", 2)
    place.say(B, b"four\n", 4)
    assert texts(place.reader().read()) == ["1 zero", "0 one", "1 two", "0 three", "1 and four"]
    reader = place.reader()
    assert list(reader.read()) == list(reader.read())
    assert [line.time - NOW for line in reader.read()] == [0, 1, 2, 3, 4]
    place.say(B, b"b\n", 5)
    place.say(A, b"a\n", 5)
    place.say(A, b"its clock was set back\n", -4000)
    assert texts(place.reader().read())[5:] == ["0 a", "0 its clock was set back", "1 b"], "of one moment: by task"
    for task in (A, B):
        times_of(place.path / "times", task).unlink()
    lines = list(place.reader().read(since=NOW))
    assert ({line.time for line in lines}, len(lines)) == ({0.0}, 8), "an index can be lost; output must not be"


def test_attempts_begin_with_our_line(place: Place) -> None:
    """Even if the previous attempt did not end its last line."""
    place.say(A, b"old\nno end", 0)
    place.again(A, 2, 1)
    place.say(A, b"new\n", 1)
    place.logs[A].lose(5, "5 bytes are missing", NOW)
    place.again(A, 3, 2)
    place.say(B, b"never again\n", 3)
    lines = list(place.reader().read())
    assert [(line.attempt, line.text) for line in lines if line.task == A] == [
        (0, b"old"),
        (0, b"no end"),
        (2, b"---- tflaunch: worker:0 attempt 2 ----"),
        (2, b"new"),
        (2, b"---- tflaunch: 5 bytes are missing ----"),
        (3, b"---- tflaunch: worker:0 attempt 3 ----"),
    ]
    for attempt in (0, 2, 3, 7):
        wanted = [line for line in lines if line.attempt == attempt]
        assert list(place.reader().read(attempt=attempt)) == wanted
        assert list(place.reader().read(attempt=attempt, tail=1)) == [
            [line for line in wanted if line.task == task][-1]
            for task in (A, B)
            if any(line.task == task for line in wanted)
        ]


def test_lines_of_an_earlier_run_are_not_read(place: Place) -> None:
    """With --log-dir, a log may also hold one."""
    path_of(place.path / "logs", A).parent.mkdir()
    path_of(place.path / "logs", A).write_bytes(b"of\nan earlier run\n")
    other = Place(place.path / "logs")
    other.say(A, b"mine\n")
    assert texts(other.reader().read()) == texts(other.reader().read(tail=5)) == ["0 mine"]


def test_since_begins_with_the_line_that_was_being_written(place: Place) -> None:
    for second in range(90, 100):
        place.say(A, b"%d begins, " % second, second)
        place.say(A, b"ends\n", second + 0.5)
    assert texts(place.reader().read(since=NOW + 97.2)) == [f"0 {n} begins, ends" for n in (97, 98, 99)]
    assert texts(place.reader().read(since=NOW + 98, tail=1)) == ["0 99 begins, ends"]
    assert [len(texts(place.reader().read(since=NOW + since))) for since in (500, -500)] == [0, 10]


def test_following(place: Place) -> None:
    place.say(A, b"one\ntw")
    reader = place.reader()
    assert texts(reader.read(tail=1)) == ["0 one"]
    assert texts(reader.new_lines()) == []
    place.say(B, b"b\n", 2)
    place.say(A, b"o\nthree\nfo", 1)
    assert texts(reader.new_lines()) == ["0 two", "0 three", "1 b"]
    place.again(A, 1, 3)
    place.say(A, b"next\nlast", 3)
    lines = list(reader.new_lines())
    assert [(line.attempt, line.text[:8], line.time - NOW) for line in lines] == [
        (0, b"fo", 1), (1, b"---- tfl", 3), (1, b"next", 3),
    ]  # fmt: skip
    assert texts(reader.rest()) == ["0 last"]
    assert texts(reader.rest()) == []
    assert texts(reader.new_lines()) == []


def test_following_one_attempt(tmp_path: Path) -> None:
    """It may begin later; not even a log exists before the run begins."""
    early = LogReader(tmp_path, tmp_path, [A])
    assert texts(early.read()) == texts(early.new_lines()) == texts(early.rest()) == []
    place = Place(tmp_path, (A,))
    place.say(A, b"hello\nyou")
    assert (texts(early.new_lines()), texts(early.rest())) == (["0 hello"], ["0 you"])
    reader = place.reader()
    assert texts(reader.read(attempt=1)) == texts(reader.new_lines()) == []
    place.again(A, 1)
    place.say(A, b"one\n")
    assert texts(reader.new_lines()) == ["0 ---- tflaunch: worker:0 attempt 1 ----", "0 one"]
    place.again(A, 2)
    place.say(A, b"two\nmore")
    assert texts(reader.new_lines()) == texts(reader.rest()) == []


def test_a_line_without_end_is_read_in_pieces_in_little_memory(place: Place) -> None:
    """It is not lost; for the last lines only its end is returned, and of a progress bar what is shown."""
    for _ in range(30):
        place.say(A, b"x" * 1_000_000)
    place.say(B, b"".join(b"%d%%\r" % number for number in range(100_000)))
    tracemalloc.start()
    reader = place.reader()
    assert texts(reader.read()) == []
    size = 0
    for line in reader.rest():
        assert line.text == b"99999%" if line.task == B else len(line.text) <= 2 * log_reader.LONGEST
        size += len(line.text)
    assert size == 30_000_006
    assert tracemalloc.get_traced_memory()[1] < 20_000_000
    tracemalloc.stop()
    reader = place.reader()
    assert texts(reader.read(tail=1)) == []
    assert sum(len(line.text) for line in reader.rest() if line.task == A) == 64 * 1024
    for task in (A, B):
        place.say(task, b"\n")
    assert sum(len(line.text) for line in place.reader().read()) == 30_000_006


def test_the_end_of_a_large_log_is_read_from_its_end(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Regardless of what precedes it; and the whole log is read in little memory.

    A progress bar is its last state, as in a terminal; a long line, as of JSON, is not torn.
    """
    place.say(B, b"1/3\r2/3\r3/3\r\n" + b"x" * 2_000_000 + b"\nend\r\n")
    assert texts(place.reader().read()) == ["1 3/3", f"1 {'x' * 2_000_000}", "1 end"]
    place.tasks = (A,)
    for _ in range(20):
        place.say(A, (b"x" * 99 + b"\n") * 2000)
    asked = Mock(wraps=os.pread)
    monkeypatch.setattr(os, "pread", asked)
    assert len(list(place.reader().read(tail=10))) == 10
    assert sum(call.args[1] for call in asked.call_args_list) < 300_000
    monkeypatch.undo()
    tracemalloc.start()
    assert sum(1 for _ in place.reader().read()) == 40_000
    assert tracemalloc.get_traced_memory()[1] < 3_000_000
    tracemalloc.stop()


WRITES = st.lists(
    st.tuples(
        st.sampled_from([A, B]),
        st.one_of(st.lists(st.sampled_from([b"a", b"b", b"\n", b"cc"]), max_size=6).map(b"".join), st.integers(1, 3)),
        st.floats(0, 2),
    ),
    max_size=30,
)


@given(WRITES, st.integers(0, 30), st.integers(0, 5), st.floats(0, 30), st.sampled_from([1, 2, 7, 64]))
def test_every_way_to_read_gives_the_same_lines(
    writes: list[tuple[str, bytes | int, float]], cut: int, tail: int, since: float, block: int
) -> None:
    """At once or as it arrives; all lines or the last; with any block size."""
    with TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_reader, "_BLOCK", block)
        place = Place(Path(directory))
        followed: list[Any] = []
        follower, now = place.reader(), 0.0
        attempts = {A: 0, B: 0}
        for number, (task, what, wait) in enumerate(writes):
            now += wait
            if number == cut:
                followed += follower.read()
            elif number > cut and number % 3 == 0:
                followed += follower.new_lines()
            if isinstance(what, int):
                attempts[task] += what
                place.again(task, attempts[task], now)
            else:
                place.say(task, what, now)
        followed += follower.read() if cut >= len(writes) else follower.new_lines()
        lines = list(place.reader().read())
        for task in (A, B):
            mine = [line for line in lines if line.task == task]
            assert [line for line in followed if line.task == task] == mine
            text = path_of(place.path, task).read_bytes()
            assert b"".join(line.text + b"\n" for line in mine) == text[: text.rfind(b"\n") + 1]
            assert all(one.attempt <= other.attempt for one, other in pairwise(mine))
            assert [one for one in place.reader().read(tail=tail) if one.task == task] == (mine[-tail:] if tail else [])
            late = [line for line in place.reader().read(since=NOW + since) if line.task == task]
            assert late == [line for line in mine if line.time >= NOW + since]
        for attempt in range(4):
            assert list(place.reader().read(attempt=attempt)) == [line for line in lines if line.attempt == attempt]
        assert lines == sorted(lines, key=lambda line: line.time)
        place.close()


def test_a_mark_that_is_being_written_is_read_when_it_is_whole(place: Place) -> None:
    """A reader never waits for the supervisor."""
    place.say(A, b"one\n")
    reader = place.reader()
    assert reader.read() is not None
    mark = json.dumps([A, 5, 4, 0]) + "\n"
    with (place.path / "marks.jsonl").open("a") as file:
        file.write(mark[:7])
        file.flush()
        assert texts(reader.new_lines()) == []
        file.write(mark[7:])
    place.say(A, b"two\n")
    assert [line.attempt for line in reader.new_lines()] == [5]
