"""Logs: a task's output, our own lines in between, and where to continue after a supervisor was killed."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.needs import need
from tflaunch.errors import TflaunchError
from tflaunch.store.log_index import IndexReader
from tflaunch.store.log_writer import Marks, TaskLog, missing, path_of, require_own_logs, tail, times_of

TASK = "worker:0"
NOW = 1_800_000_000.0


class Place:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.marks = Marks(path / "marks.jsonl")
        self.log = TaskLog(TASK, path_of(path, TASK), self.marks, times_of(path / "times", TASK))

    def say(self, data: bytes, seconds: float = 0.0) -> Place:
        """Write output of the task, ``seconds`` after NOW."""
        self.log.append(data, [(0, NOW + seconds)])
        return self

    def next(self) -> Place:
        self.log.close()
        self.marks.close()
        return Place(self.path)

    def kept(self) -> tuple[int, int]:
        """Return the attempt in the log, and how much of its output an earlier supervisor kept."""
        mark = self.marks.earlier.get(TASK)
        return mark.attempt, mark.offset + self.log.first_size - mark.at

    def times(self) -> list[tuple[float, int]]:
        """Return the entries of the index: seconds after NOW, and position in the log."""
        entries = IndexReader(times_of(self.path / "times", TASK)).entries(0, 100)
        return [(round(entry.time - NOW, 3), entry.at) for entry in entries]

    def text(self) -> str:
        return path_of(self.path, TASK).read_text()


def test_a_line_of_ours_begins_on_its_own_line_after_another_supervisor_was_killed(tmp_path: Path) -> None:
    """That one had written half of a line."""
    place = Place(tmp_path).say(b"half")
    again = place.next()
    again.log.lose(0, "the end is missing", NOW)
    assert again.text() == "half\n---- tflaunch: the end is missing ----\n"
    again.say(b"mo")
    last = again.next()
    assert last.kept() == (0, 6)
    last.log.begin_attempt(1, NOW)
    assert last.text().endswith("mo\n---- tflaunch: worker:0 attempt 1 ----\n")


def test_words_of_ours_do_not_count_as_the_tasks(tmp_path: Path) -> None:
    """Neither those between attempts nor those at missing output."""
    place = Place(tmp_path).say(b"no end")
    place.log.begin_attempt(2, NOW)
    place.say(b"abc\n")
    place.log.lose(100, "100 bytes are missing", NOW)
    place.say(b"d\n")
    assert place.text() == (
        "no end\n---- tflaunch: worker:0 attempt 2 ----\nabc\n---- tflaunch: 100 bytes are missing ----\nd\n"
    )
    again = place.next()
    assert again.kept() == (2, 106)
    again.say(b"efg\n")
    assert again.next().kept() == (2, 110)


def test_a_supervisor_may_be_killed_between_its_mark_and_its_words(tmp_path: Path) -> None:
    """The mark records where the output would have ended."""
    place = Place(tmp_path).say(b"abc\n")
    place.log.begin_attempt(1, NOW)
    place.log.close()
    path_of(tmp_path, TASK).write_text("abc\n---- tfl")
    again = Place(tmp_path)
    assert again.log.attempt == 1
    again.say(b"hello\n")
    assert again.next().kept() == (1, 6)


def test_the_tail_keeps_blank_lines_but_for_those_at_the_end(tmp_path: Path) -> None:
    """They tell where a chained traceback begins. A progress bar is one line, as a terminal would show it last.

    The task may never have started, and --log-dir keeps earlier runs.
    """
    assert tail(tmp_path, TASK, 9) == []
    path_of(tmp_path, TASK).write_text("earlier\n")
    place = Place(tmp_path).say(b"now\n")
    assert place.next().kept() == (0, 4)
    assert tail(tmp_path, TASK, 9) == ["earlier", "now"]
    path_of(tmp_path, TASK).write_text("KeyError: 'a'\n\nDuring handling\n\n \n")
    assert tail(tmp_path, TASK, 9) == ["KeyError: 'a'", "", "During handling"]
    assert tail(tmp_path, TASK, 1) == ["During handling"]
    bar = "".join(f"\r{step}/100 [==>...]" for step in range(1, 101))
    path_of(tmp_path, TASK).write_text(f"Epoch 1\n{bar}\ndone\r\n", newline="")
    assert tail(tmp_path, TASK, 3) == ["Epoch 1", "100/100 [==>...]", "done"]


def test_the_index_tells_when_words_were_written(tmp_path: Path) -> None:
    """Its entries are positions in the log, and our own lines have one, too."""
    place = Place(tmp_path)
    place.log.append(b"one\ntwo\n", [(0, NOW), (4, NOW + 1)])
    place.log.append(b"three", [(0, NOW + 1.02)])  # written together with the output before it
    place.log.begin_attempt(1, NOW + 5)
    place.say(b"four\n", 6)
    assert place.times() == [(0, 0), (1, 4), (5, 14), (6, 53)]
    assert (tmp_path / "times").stat().st_mode & 0o077 == 0


def test_time_goes_back_only_when_a_clock_was_set(tmp_path: Path) -> None:
    """Clocks of hosts are known to within a few milliseconds. A gap has the time of the words before it."""
    place = Place(tmp_path)
    place.log.append(b"ab", [(0, NOW), (1, NOW - 0.2)])
    place.say(b"c", 1)
    place.log.append(b"d\n", [(0, NOW - 3600)])
    assert place.times() == [(0, 0), (1, 2), (-3600, 3)]
    place.log.lose(9, "9 bytes are missing", NOW + 20)
    place.log.append(b"e\n", [(0, NOW - 3599)])
    assert [moment for moment, _ in place.times()] == [0, 1, -3600, -3599]


def test_an_index_goes_on_after_its_writer_was_killed(tmp_path: Path) -> None:
    """Without an incomplete entry, and without entries for output that was never written."""
    place = Place(tmp_path).say(b"one\n")
    place.log.append(b"two\n", [(0, NOW + 1), (2, NOW + 2)])
    place.log.close()
    os.truncate(path_of(tmp_path, TASK), 5)
    with times_of(tmp_path / "times", TASK).open("ab") as file:
        file.write(b"torn")
    again = Place(tmp_path).say(b"x\n", 3)
    assert again.times() == [(0, 0), (1, 4), (3, 5)]


@contextmanager
def full_disk(file: Path) -> Iterator[None]:
    """Simulate a full disk under a file that this process has open."""
    (descriptor,) = (int(entry.name) for entry in Path("/proc/self/fd").iterdir() if entry.resolve() == file.resolve())
    kept = os.dup(descriptor)
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, descriptor)
    os.close(full)
    yield
    os.dup2(kept, descriptor)
    os.close(kept)


def test_a_full_disk_costs_words_and_their_times(tmp_path: Path) -> None:
    """The log states how much is missing, and later output has its position and time again."""
    place = Place(tmp_path).say(b"one\n")
    with full_disk(path_of(tmp_path, TASK)):
        place.log.append(b"two\nthree\n", [(0, NOW + 1), (4, NOW + 2)])
        place.say(b"x\n", 2)
    place.say(b"four\n", 3)
    gap = "---- tflaunch: 12 bytes of output are missing here: there was no room for them ----\n"
    assert (place.text(), "12 bytes" in place.log.trouble()) == (f"one\n{gap}four\n", True)
    assert place.times()[-1] == (3, 4)
    assert place.next().kept() == (0, 21)


def test_no_words_are_taken_for_those_of_another_attempt(tmp_path: Path) -> None:
    """If there was no room for the line between two attempts, it precedes the next output."""
    place = Place(tmp_path).say(b"one\n")
    with full_disk(path_of(tmp_path, TASK)), full_disk(tmp_path / "marks.jsonl"):
        place.say(b"two\n")
        place.log.begin_attempt(1, NOW)
        place.say(b"three\n")
    with full_disk(tmp_path / "marks.jsonl"):
        place.say(b"four\n")
    place.say(b"five\n")
    first, second = ("---- tflaunch: " + missing(size) + " ----\n" for size in (4, 11))
    assert place.text() == f"one\n{first}---- tflaunch: worker:0 attempt 1 ----\n{second}five\n"
    assert place.next().kept() == (1, 16)


def test_a_full_disk_under_the_index_costs_times(tmp_path: Path) -> None:
    """The log has priority, and the index is created as soon as there is room."""
    (tmp_path / "times").write_text("no directory")
    place = Place(tmp_path).say(b"one\n")
    (tmp_path / "times").unlink()
    place.say(b"two\n", 1)
    with full_disk(times_of(tmp_path / "times", TASK)):
        place.say(b"six\n", 2)
    place.say(b"ten\n", 3)
    assert (place.text(), place.times()) == ("one\ntwo\nsix\nten\n", [(1, 4), (3, 12)])


def plant(kind: str, path: Path, target: Path) -> None:
    """Plant an entry in place of a log, as another user might."""
    match kind:
        case "symbolic link":
            path.symlink_to(target)
        case "hard link":
            path.hardlink_to(target)
        case "regular file":
            os.mkfifo(path)
        case "belongs to user":
            need("root")
            path.touch()
            os.chown(path, 12345, 12345)


PLANTED = ["symbolic link", "hard link", "regular file", "belongs to user"]


@pytest.mark.parametrize("kind", PLANTED)
def test_a_log_that_others_have_made_is_refused(tmp_path: Path, kind: str) -> None:
    """--log-dir may be a directory that others can write to."""
    target = tmp_path / "target"
    target.touch()
    require_own_logs(tmp_path, [TASK, "worker:1"])
    plant(kind, path_of(tmp_path, TASK), target)
    with pytest.raises(TflaunchError, match=f"worker-0.log .*{kind}.*; remove it") as refused:
        require_own_logs(tmp_path, ["worker:1", TASK])
    assert refused.value.exit_code == 2
    require_own_logs(tmp_path, ["worker:1"])


@pytest.mark.parametrize("kind", PLANTED)
def test_nothing_is_written_into_what_others_have_planted_later(tmp_path: Path, kind: str) -> None:
    """It is treated like a full disk; the log begins when it can, with a note of what is missing."""
    target = tmp_path / "target"
    target.touch()
    plant(kind, path_of(tmp_path, TASK), target)
    place = Place(tmp_path)
    assert place.log.append(b"one\n", [(0, NOW)]) is None
    assert re.search(f"4 bytes could not be written: it .*{kind}", place.log.trouble())
    assert (place.log.tail(3), target.read_bytes()) == ([], b"")
    path_of(tmp_path, TASK).unlink()
    kept = place.log.append(b"two\n", [(0, NOW)])
    gap = f"---- tflaunch: {missing(4)} ----\n"
    assert place.text() == f"{gap}two\n"
    assert kept == (str(path_of(tmp_path, TASK)), len(gap))
    assert place.next().kept() == (0, 8)


def test_a_log_that_is_never_opened_costs_output_only(tmp_path: Path) -> None:
    path_of(tmp_path, TASK).mkdir()
    place = Place(tmp_path).say(b"one\n")
    place.log.begin_attempt(1, NOW)
    place.say(b"two\n")
    place.log.lose(9, "9 bytes are missing", NOW)
    assert "8 bytes could not be written: Is a directory" in place.log.trouble()
    place.log.close()


def test_output_that_is_kept_can_be_read_there(tmp_path: Path) -> None:
    place = Place(tmp_path)
    assert place.log.append(b"one", [(0, NOW)]) == (str(path_of(tmp_path, TASK)), 0)
    place.log.begin_attempt(1, NOW)
    kept = place.log.append(b"two", [(0, NOW)])
    assert place.text()[kept.start :] == "two"
    with full_disk(path_of(tmp_path, TASK)):
        assert place.log.append(b"three", [(0, NOW)]) is None
