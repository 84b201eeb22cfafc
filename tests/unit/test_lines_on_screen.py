"""What of the tasks' output reaches a terminal: all of it in order, equal lines once, text and colours, no commands."""

import itertools
import threading
import tracemalloc
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.waiting import PATIENCE
from tflaunch.store.log_reader import Line
from tflaunch.store.log_writer import Kept
from tflaunch.tui import backlog
from tflaunch.tui import fold as log_fold
from tflaunch.tui.backlog import Backlog, Piece
from tflaunch.tui.fold import Folded, Folder, LiveFold, spans
from tflaunch.tui.formatting import without_commands

TASKS = [f"worker:{number}" for number in range(8)]
PREFIXES = {task: f"{task} | ".encode() for task in TASKS}


class Shown:
    """A fold whose clock the test moves, and what it shows, with the time."""

    def __init__(self) -> None:
        self.now = 0.0
        self.lines: list[tuple[float, str]] = []
        self.fold = LiveFold(PREFIXES, lambda: self.now)

    def write(self, task: int, *lines: str) -> None:
        name = TASKS[task]
        self._note(self.fold.feed(name, b"".join(PREFIXES[name] + line.encode() + b"\n" for line in lines)))

    def wait(self, seconds: float) -> None:
        until = self.now + seconds
        while (patience := self.fold.patience) is not None and self.now + patience <= until:
            self.now += patience
            self._note(self.fold.release())
        self.now = until

    def end(self) -> list[str]:
        self._note(self.fold.flush())
        return [line for _, line in self.lines]

    def _note(self, text: bytes) -> None:
        self.lines += [(self.now, line) for line in text.decode().splitlines()]


def test_equal_lines_are_shown_once_with_the_names_of_all() -> None:
    """Half a second later, also of two tasks; they are named as `tflaunch logs worker:3-5` selects them."""
    assert spans(["worker:10", "worker:9", "ps:0", "tensorboard"]) == "ps:0 tensorboard worker:9-10"
    shown = Shown()
    for task in (0, 1):
        shown.write(task, "hello")
    assert shown.lines == []
    shown.wait(2)
    assert shown.lines == [(0.5, "worker:0-1 | hello")]
    assert shown.fold.patience is None
    shown.write(3, "own")
    assert shown.end()[1:] == ["worker:3 | own"]
    prefix = b"\033[36mworker:0    | \033[0m"  # names take its columns, and its colour
    fold = LiveFold({"worker:0": prefix, "worker:1": b"worker:1    | "}, lambda: 0.0)
    fold.feed("worker:0", prefix + b"a\n")
    fold.feed("worker:1", b"worker:1    | a\n")
    assert fold.flush() == b"\033[36mworker:0-1  | \033[0ma\n"


@pytest.mark.parametrize(
    ("writes", "shown"),
    [
        ([(0, "ab"), (1, "a"), (2, "a"), (2, "b"), (1, "b")], ["worker:0-2 | a", "worker:0-2 | b"]),
        ([(0, "ax"), (1, "ay"), (2, "az")], ["worker:0-2 | a", "worker:0 | x", "worker:1 | y", "worker:2 | z"]),
    ],
    ids=["lines that come in turns", "lines after a folded one wait for it"],
)
def test_each_tasks_lines_keep_their_order(writes: list[tuple[int, str]], shown: list[str]) -> None:
    screen = Shown()
    for task, lines in writes:
        screen.write(task, *lines)
    assert screen.end() == shown


PAUSES = st.sampled_from([0, 0, 0.01, 0.3, 0.9, 2])
WRITTEN = st.lists(st.tuples(PAUSES, st.integers(0, 7), st.lists(st.sampled_from("abc"))), max_size=40)


@given(WRITTEN)
def test_no_line_is_lost_late_or_out_of_order(steps: list[tuple[float, int, list[str]]]) -> None:
    """What is shown of each task is what it wrote, at most half a second later."""
    shown = Shown()
    written: dict[str, list[tuple[float, str]]] = {task: [] for task in TASKS}
    for pause, task, lines in steps:
        shown.wait(pause)
        shown.write(task, *lines)
        written[TASKS[task]] += [(shown.now, line) for line in lines]
    shown.wait(3)
    assert shown.fold.flush() == b""
    seen: dict[str, list[float]] = {task: [] for task in TASKS}
    for at, line in shown.lines:
        names, _, text = line.partition(" | ")
        ends = (word.removeprefix("worker:").partition("-") for word in names.split())
        for name in (TASKS[n] for first, _, last in ends for n in range(int(first), int(last or first) + 1)):
            seen[name].append(at)
            assert written[name][len(seen[name]) - 1][1] == text
    for name, times in seen.items():
        assert len(times) == len(written[name])
        assert all(0 <= at - then < 0.7 for at, (then, _) in zip(times, written[name], strict=True))


def line(time: float, task: int, text: str) -> Line:
    return Line(time, f"worker:{task}", 0, text.encode())


def fold(lines: Iterable[Line], window: float = 1.0) -> Iterator[Folded]:
    folder = Folder(window)
    for one in lines:
        yield from folder.feed(one)
    yield from folder.flush()


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ([*[(task / 100, task, "a") for task in range(64)], (1, 3, "b")], ["0a+63", "3b+0"]),
        ([(0, 0, "a"), (0.9, 1, "a"), (1.1, 2, "a")], ["0a+1", "2a+0"]),
        ([(0, 0, "a"), (0.1, 0, "a"), (0.2, 1, "a"), (0.3, 1, "a"), (0.4, 1, "a")], ["0a+1", "0a+1", "1a+0"]),
        ([(0, 0, "a"), (0, 0, "b"), (0.1, 1, "b"), (0.1, 1, "a")], ["0a+0", "0b+1", "1a+0"]),
    ],
    ids=["under the name of the first", "later words again", "as often as a task says it", "no lines change places"],
)
def test_the_same_words_of_many_tasks_are_told_once(written: list[tuple[float, int, str]], shown: list[str]) -> None:
    told = fold(line(*each) for each in written)
    assert [f"{each.line.task[-1]}{each.line.text.decode()}+{len(each.others)}" for each in told] == shown


def test_lines_are_held_until_no_other_task_can_repeat_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """In bounded memory, even without timestamps."""
    folder = Folder()
    assert folder.feed(line(0, 0, "a")) == []
    assert folder.feed(line(0.5, 1, "a")) == []
    assert [(told.line.text, told.others) for told in folder.feed(line(2, 0, "b"))] == [(b"a", ["worker:1"])]
    assert [told.line.text for told in folder.flush()] == [b"b"]
    assert folder.flush() == []
    monkeypatch.setattr(log_fold, "_MOST_HELD", 10)
    endless = (line(0.0, 0, str(number)) for number in itertools.count())
    assert [told.line.text for told in itertools.islice(fold(endless), 3)] == [b"0", b"1", b"2"]


RED, RESET = b"\x1b[31m", b"\x1b[0m"


@pytest.mark.parametrize(
    ("lines", "shown"),
    [
        (b"plain\ttext\n\xc3\xa4\xe6\x97\xa5\n\xff\xfe\n", b"plain\ttext\n\xc3\xa4\xe6\x97\xa5\n\xff\xfe\n"),
        (RED + b"red\nnext\n", RED + b"red" + RESET + b"\nnext\n"),
        (b"a " + RED + b"b" + RESET + b" c", b"a " + RED + b"b" + RESET + b" c" + RESET),
        (b"\x1b[38;2;1;2;3m\x1b[4:3mx\n", b"\x1b[38;2;1;2;3m\x1b[4:3mx" + RESET + b"\n"),
        (b"\x1b]0;title\x07a\x1b]2;title\x1b\\b\n", b"ab\n"),
        (b"\x1b]0;never ends\nnext\n", b"\nnext\n"),
        (b"\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\\n", b"link\n"),
        (b"\x1b[2J\x1b[H\x1b[?1049h\x1b[6n\x1b[3A\x1bcx\n", b"x\n"),
        (b"\x1bP1$r\x1b\\\x1b_x\x1b\\\x1b^y\x1b\\z\n", b"z\n"),
        (b"\x1b(0lqk\x1b)Bx\n", b"lqkx\n"),
        (b"a\x08\x08b\x07\x00\x0e\x0f\x7f\x0b\x0cc\n", b"abc\n"),
        (b"\xc2\x9b2Jx\xc2\x85y\xc2\xa0z\n", b"2Jxy\xc2\xa0z\n"),
        (b"\x1b\nx\x1b[", b"\nx"),
        ("a\u202eb\u2066c\u2069\u202a\u2067d\u2028e\u2603f\n".encode(), "abcd\u2028e\u2603f\n".encode()),
        (b"\xe2\x07\x80\xaex\xe2\x80\x07\xaey\xe2\xe2\x80\xae\x80\xaez\n", b"\x80\xaex\xaey\x80\xaez\n"),
        (b"\xc2\x1b\x9b2Jx\xc2\xc2\x9b\x9b\n", b"\x9b2Jx\x9b\n"),
    ],
)
def test_text_and_colours_pass_and_nothing_else_does(lines: bytes, shown: bytes) -> None:
    """No title changes, cursor movement, clearing, bell or character sets."""
    assert without_commands(lines) == shown


A, B = "worker:0", "worker:1"
LINE = b"x" * 99 + b"\n"


class Logs:
    """Task logs whose output is also added to a backlog."""

    def __init__(self, directory: Path, is_skipping: bool = False) -> None:
        self.directory = directory
        self.backlog = Backlog(is_skipping)

    def write(self, task: str, data: bytes, is_kept: bool = True) -> None:
        path = self.directory / task
        with path.open("ab") as log:
            start = log.tell()
            if is_kept:
                log.write(data)
        self.backlog.add(Piece(task, data), Kept(str(path), start) if is_kept else None)

    def taken(self) -> list[Piece]:
        found = []
        while (piece := self.backlog.take(0)) is not None:
            found.append(piece)
            self.backlog.note_written()
        return found


@pytest.fixture
def logs(tmp_path: Path) -> Logs:
    return Logs(tmp_path)


def of(task: str | None, pieces: list[Piece]) -> bytes:
    return b"".join(piece.data for piece in pieces if piece.task == task)


def test_a_slow_reader_gets_everything_and_costs_little_memory(logs: Logs) -> None:
    """60 MB from two tasks with messages in between: each line once, and output and messages keep their order."""
    tracemalloc.start()
    sentences = 3
    for number in range(1, sentences + 1):
        for _ in range(1000):
            logs.write(A, LINE * 100)
            logs.write(B, LINE * 100)
        logs.backlog.add(Piece(None, b"%d %d\n" % (number * 10_000_000, number * 10_000_000)))
    assert tracemalloc.get_traced_memory()[1] < 2 * backlog.MEMORY
    seen = {A: 0, B: 0}
    while (piece := logs.backlog.take(0)) is not None:
        if piece.task is None:
            assert piece.data == b"%d %d\n" % (seen[A], seen[B])
            sentences -= 1
        else:
            assert piece.data == LINE * (len(piece.data) // 100)
            seen[piece.task] += len(piece.data)
    assert (seen, sentences) == ({A: 30_000_000, B: 30_000_000}, 0)
    assert tracemalloc.get_traced_memory()[1] < 3 * backlog.MEMORY
    tracemalloc.stop()


def test_a_reader_that_keeps_up_or_catches_up_is_served_from_memory(logs: Logs) -> None:
    logs.write(A, b"one\n")
    logs.write(B, b"two\n")
    logs.backlog.add(Piece(None, b"tflaunch: three\n"))
    logs.backlog.add(Piece(A, b"", ends_line=True))
    ours = (None, b"tflaunch: three\n", False)
    assert logs.taken() == [(A, b"one\n", False), (B, b"two\n", False), ours, (A, b"", True)]
    assert logs.backlog.take(0) is None
    text = b"".join(b"%099d\n" % number for number in range(100_000))
    for start in range(0, len(text), 100_000):
        logs.write(A, text[start : start + 100_000])
    pieces = logs.taken()
    for path in logs.directory.iterdir():
        path.rename(logs.directory / "moved")
    logs.write(A, b"late\n")
    pieces += logs.taken()
    assert of(A, pieces) == text + b"late\n"


def test_a_terminal_that_is_far_behind_skips_and_says_how_much(tmp_path: Path) -> None:
    """The newest output and every message are shown; unfinished lines end where output is missing."""
    logs = Logs(tmp_path, is_skipping=True)
    for number in range(60):
        logs.write(A, b"%099d\n" % number * 10_000)
        logs.backlog.add(Piece(None, b"sentence\n"))
    pieces = logs.taken()
    assert of(A, pieces).endswith(b"%099d\n" % 59 * 10_000)
    said = of(None, pieces).decode()
    assert said.count("sentence") == 60
    (skipped,) = [float(line.split()[1]) for line in said.splitlines() if "not shown" in line]
    assert skipped * 1e6 + len(of(A, pieces)) == 60e6
    assert len(of(A, pieces)) <= backlog.MOST_BEHIND + backlog.MEMORY
    assert Piece(A, b"", ends_line=True) in pieces


def test_what_no_log_has_room_for_and_what_was_removed_is_stated(logs: Logs) -> None:
    for _ in range(100):
        logs.write(A, LINE * 1000, is_kept=False)
    pieces = logs.taken()
    missed = 10_000_000 - len(of(A, pieces))
    assert missed > 0
    assert f"{missed / 1e6:.1f} MB of output are not shown here".encode() in of(None, pieces)
    for _ in range(100):
        logs.write(B, LINE * 1000)
    (logs.directory / B).unlink()
    assert b"was changed by another program" in of(None, logs.taken())
    logs.write(A, LINE)
    logs.backlog.add(Piece(None, b"sentence\n"))
    logs.backlog.drop_output()  # nobody reads it; messages may have a reader of their own
    assert logs.taken() == [(None, b"sentence\n", False)]


def test_waiting_ends_when_everything_is_written(logs: Logs) -> None:
    """Not when it is taken from the backlog."""
    logs.write(A, b"one\n")
    assert logs.backlog.take(None) is not None
    happened: list[str] = []

    def wait() -> None:
        logs.backlog.wait_until_written()
        happened.append("the wait is over")

    waiter = threading.Thread(target=wait)
    waiter.start()
    happened.append("all is written")
    logs.backlog.note_written()
    waiter.join(PATIENCE)
    assert happened == ["all is written", "the wait is over"]
    logs.backlog.close()
    assert logs.backlog.take(None) is None
    assert logs.backlog.is_over
