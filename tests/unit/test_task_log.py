"""Logs: what a task wrote, words of ours between, and where to go on after a supervisor was killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tflaunch.task_log import Marks, TaskLog, path_of, tail

pytestmark = pytest.mark.unit

TASK = "worker:0"


class Place:
    """A run's logs, and the supervisors that follow each other there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.marks = Marks(path / "marks.jsonl")
        self.log = TaskLog(TASK, path_of(path, TASK), self.marks)

    def next(self) -> Place:
        """Return what another supervisor finds."""
        self.log.close()
        self.marks.close()
        return Place(self.path)

    def kept(self) -> tuple[int, int]:
        """Return the attempt in the log, and how much of it an earlier supervisor has kept."""
        mark = self.marks.of_earlier(TASK)
        assert mark is not None
        return mark.attempt, mark.offset + self.log.first_size - mark.at

    def text(self) -> str:
        """Return the log."""
        return path_of(self.path, TASK).read_text()


def test_a_log_is_what_the_task_wrote(tmp_path: Path) -> None:
    """Nothing of ours stands in the first attempt."""
    place = Place(tmp_path)
    place.log.append(b"one\ntw")
    place.log.append(b"o\n")
    assert place.text() == "one\ntwo\n"
    assert place.next().kept() == (0, 8)


def test_words_of_ours_do_not_count_as_the_tasks(tmp_path: Path) -> None:
    """Neither between attempts nor where output is missing."""
    place = Place(tmp_path)
    place.log.append(b"no end")
    place.log.begin_attempt(2, "worker:0 attempt 2")
    place.log.append(b"abc\n")
    place.log.lose(100, "100 bytes are missing")
    place.log.append(b"d\n")
    assert place.text() == (
        "no end\n---- tflaunch: worker:0 attempt 2 ----\nabc\n---- tflaunch: 100 bytes are missing ----\nd\n"
    )
    again = place.next()
    assert again.kept() == (2, 106)
    again.log.append(b"efg\n")
    assert again.next().kept() == (2, 110)


def test_words_of_an_earlier_run_do_not_count(tmp_path: Path) -> None:
    """--log-dir may hold them."""
    path_of(tmp_path, TASK).write_text("earlier\n")
    place = Place(tmp_path)
    place.log.append(b"now\n")
    assert place.next().kept() == (0, 4)
    assert tail(tmp_path, TASK, 9) == ["earlier", "now"]


def test_a_supervisor_may_be_killed_between_its_mark_and_its_words(tmp_path: Path) -> None:
    """The mark says where the words would have ended."""
    place = Place(tmp_path)
    place.log.append(b"abc\n")
    place.log.begin_attempt(1, "worker:0 attempt 1")
    place.log.close()
    path_of(tmp_path, TASK).write_text("abc\n---- tfl")
    again = Place(tmp_path)
    assert again.log.attempt == 1
    again.log.append(b"hello\n")
    assert again.next().kept() == (1, 6)


def test_a_torn_mark_is_not_there(tmp_path: Path) -> None:
    """Its words were not written either."""
    place = Place(tmp_path)
    place.log.append(b"abc\n")
    with (tmp_path / "marks.jsonl").open("a") as file:
        file.write('["worker:0", 1, 4')
    again = place.next()
    assert again.kept() == (0, 4)
    again.log.begin_attempt(1, "worker:0 attempt 1")
    again.log.append(b"de\n")
    assert again.next().kept() == (1, 3)


def test_the_tail_of_a_log_without_a_log_is_empty(tmp_path: Path) -> None:
    """The task may never have started."""
    assert tail(tmp_path, TASK, 9) == []
