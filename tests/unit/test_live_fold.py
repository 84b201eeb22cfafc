"""Equal lines of many tasks on a followed screen: the first at once, the others as a note, in each task's order."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as some

from tflaunch.tui.live_fold import LiveFold, spans

pytestmark = pytest.mark.unit

TASKS = [f"worker:{number}" for number in range(8)]
PREFIXES = {task: f"{task} | ".encode() for task in TASKS}


class Shown:
    """A fold whose clock the test moves, and what it shows, with the time."""

    def __init__(self) -> None:
        self.now = 0.0
        self.lines: list[tuple[float, str]] = []
        self.fold = LiveFold(PREFIXES, lambda: self.now)

    def write(self, task: int, *lines: str) -> None:
        """Have a task write lines at once."""
        name = TASKS[task]
        self._note(self.fold.feed(name, b"".join(PREFIXES[name] + line.encode() + b"\n" for line in lines)))

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        until = self.now + seconds
        while (patience := self.fold.patience) is not None and self.now + patience <= until:
            self.now += patience
            self._note(self.fold.release())
        self.now = until

    def end(self) -> list[str]:
        """Return all that was shown."""
        self._note(self.fold.flush())
        return [line for _, line in self.lines]

    def _note(self, text: bytes) -> None:
        self.lines += [(self.now, line) for line in text.decode().splitlines()]


def test_the_first_is_shown_at_once_and_the_others_as_a_note() -> None:
    """A second later, with the number of the tasks that the note stands for."""
    shown = Shown()
    for task in range(8):
        shown.write(task, "hello")
    assert shown.lines == [(0.0, "worker:0 | hello")]
    shown.wait(2)
    assert shown.lines[1:] == [(1.0, "[worker:1-7] hello (7 times)")]
    assert shown.fold.patience is None


def test_a_block_of_lines_is_one_note() -> None:
    """That says who has shown them, and how they end."""
    shown = Shown()
    for task in (3, 0, 1, 6):
        shown.write(task, "Traceback:", "  train.py", "ValueError: x", "")
    assert shown.end() == [
        *(f"worker:3 | {line}" for line in ("Traceback:", "  train.py", "ValueError: x", "")),
        "[worker:0-1 worker:6] the 4 lines of worker:3 that end with: ValueError: x",
    ]


def test_lines_that_come_in_turns_are_a_block_too() -> None:
    """In whatever order their tasks write them."""
    shown = Shown()
    shown.write(0, "a", "b")
    for task, text in ((1, "a"), (2, "a"), (2, "b"), (1, "b")):
        shown.write(task, text)
    assert shown.end()[2:] == ["[worker:1-2] the 2 lines of worker:0 that end with: b"]


def test_a_line_of_one_other_task_is_shown_as_it_is() -> None:
    """It is as short as a note."""
    shown = Shown()
    shown.write(0, "a")
    shown.write(1, "a")
    assert shown.end() == ["worker:0 | a", "worker:1 | a"]


def test_lines_after_a_folded_one_wait_for_its_note() -> None:
    """Those of the same task; others are shown at once."""
    shown = Shown()
    for task in range(3):
        shown.write(task, "same", f"own {task}")
    assert [line for _, line in shown.lines] == ["worker:0 | same", "worker:0 | own 0"]
    assert shown.end()[2:] == ["[worker:1-2] same (2 times)", "worker:1 | own 1", "worker:2 | own 2"]


@pytest.mark.parametrize(
    ("tasks", "words"),
    [
        (["worker:10", "worker:9", "ps:0"], "ps:0 worker:9-10"),
        (["tensorboard", "chief:0"], "chief:0 tensorboard"),
        (["worker:1", "worker:3", "worker:4", "worker:5"], "worker:1 worker:3-5"),
    ],
)
def test_tasks_are_named_as_they_are_selected(tasks: list[str], words: str) -> None:
    """`tflaunch logs worker:3-5`."""
    assert spans(tasks) == words


PAUSES = some.sampled_from([0, 0, 0.01, 0.3, 0.9, 2])
WRITTEN = some.lists(some.tuples(PAUSES, some.integers(0, 7), some.lists(some.sampled_from("abc"))), max_size=40)
BLOCK = r"\[(?P<names>.*)\] the (?P<count>\d+) lines of worker:\d that end with: (?P<text>.)"
NOTE = r"\[(?P<names>.*)\] (?P<text>.) \((?P<count>\d+) times\)"


@given(WRITTEN)
def test_no_line_is_lost_late_or_out_of_order(steps: list[tuple[float, int, list[str]]]) -> None:
    """Each task's lines, with those that notes stand for, are what it wrote, at most a second later."""
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
        if found := re.fullmatch(BLOCK, line) or re.fullmatch(NOTE, line):
            is_block = "that end with" in line
            assert is_block or len(_named(found["names"])) == int(found["count"])
            for name in _named(found["names"]):
                seen[name] += [at] * (int(found["count"]) if is_block else 1)
                assert written[name][len(seen[name]) - 1][1] == found["text"]
        else:
            name, _, text = line.partition(" | ")
            seen[name].append(at)
            assert written[name][len(seen[name]) - 1][1] == text
    for name, times in seen.items():
        assert len(times) == len(written[name])
        assert all(0 <= at - then < 1.2 for at, (then, _) in zip(times, written[name], strict=True))


def _named(words: str) -> list[str]:
    ends = (re.fullmatch(r"worker:(\d)(?:-(\d))?", word) for word in words.split())
    numbers = (range(int(found[1]), int(found[2] or found[1]) + 1) for found in ends if found)
    return [f"worker:{number}" for number in itertools.chain(*numbers)]
