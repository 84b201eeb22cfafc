"""The view below the lines, on a real terminal: what a user sees of it, byte by byte."""

import fcntl
import json
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from typing import Any

import pyte
import pytest

from support.job_history import RUN, TASK
from support.launch import PATIENCE
from tflaunch.records import as_json

CHILD = """
import json, os, sys
from tflaunch.explain.run_status import Status
from tflaunch.records import read_record
from tflaunch.tui.screen import Screen

screen = Screen(["worker:0", "worker:1"])
answers = int(sys.argv[1])
for line in sys.stdin:
    name, *arguments = json.loads(line)
    if name == "show":
        screen.show(arguments[0], arguments[1].encode() * arguments[2], None)
    elif name == "update":
        screen.update(read_record(Status, arguments[0]))
    elif name == "quit":
        break
    elif name == "is_live":
        os.write(answers, b"live" if screen.is_live else b"not live")
    elif name == "is_rich_imported":
        os.write(answers, b"yes" if "rich" in sys.modules else b"no")
    else:
        getattr(screen, name)(*arguments)
    os.write(answers, b"\\n")
"""
WATCHER = """
import json, os, sys
from tflaunch.explain.run_status import Status
from tflaunch.records import read_record
from tflaunch.tui.live import watch

def statuses():
    for line in sys.stdin:
        if json.loads(line) == ["quit"]:
            break
        yield read_record(Status, json.loads(line)[1])
        os.write(int(sys.argv[1]), b"\\n")

watch(statuses())
print("after it", flush=True)
os.write(int(sys.argv[1]), b"\\n")
"""
CURSOR_IS_HIDDEN, CURSOR_IS_SHOWN = b"\x1b[?25l", b"\x1b[?25h"
FRAME_BEGINS, FRAME_ENDS = b"\x1b[?2026h", b"\x1b[?2026l"


def status(**fields: Any) -> dict[str, Any]:
    """Return the JSON of a status of two workers."""
    tasks = tuple(TASK._replace(task=f"worker:{number}", step=7) for number in range(2))
    return as_json(RUN._replace(**{"tasks": tasks, **fields}))


class Terminal:
    """A terminal with a process that owns a `Screen`, and its content."""

    def __init__(self, program: str = CHILD, **env: str) -> None:
        columns, rows = 80, 24
        self.env = env
        self.master, self.slave = pty.openpty()
        self.emulator = pyte.Screen(columns, rows)
        self.stream = pyte.ByteStream(self.emulator)
        self.bytes = b""
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.answers, answers = os.pipe()
        self.process = subprocess.Popen(
            [sys.executable, "-c", program, str(answers)],
            stdin=subprocess.PIPE,
            stdout=self.slave,
            stderr=self.slave,
            pass_fds=[answers],
            env={**{key: value for key, value in os.environ.items() if key != "NO_COLOR"}, "TERM": "xterm", **env},
            text=True,
        )
        os.close(answers)

    def do(self, *call: Any) -> str:
        """Have the process call its screen, and wait until the call returns."""
        self.process.stdin.write(json.dumps(call) + "\n")
        self.process.stdin.flush()
        answer = b""
        while not answer.endswith(b"\n"):
            assert select.select([self.answers], [], [], PATIENCE)[0], f"{call} did not return"
            answer += os.read(self.answers, 100)
        return answer.decode().strip()

    def lines(self) -> list[str]:
        """Return the terminal's content, without empty lines below."""
        return "\n".join(line.rstrip() for line in self.emulator.display).rstrip("\n").split("\n")

    def wait(self, condition: Callable[[list[str]], bool], each: Callable[[list[str]], None] | None = None) -> None:
        """Read until a whole frame shows what is expected; ``each`` checks every state on the way."""
        while self.bytes.rfind(FRAME_BEGINS) > self.bytes.rfind(FRAME_ENDS) or not condition(self.lines()):
            assert select.select([self.master], [], [], PATIENCE)[0], "\n".join(self.lines())
            data = os.read(self.master, 65536)
            self.bytes += data
            self.stream.feed(data)
            if each is not None and self.bytes.endswith(CURSOR_IS_SHOWN + FRAME_ENDS):
                each(self.lines())

    def end(self) -> None:
        """End the process; its output can no longer be read."""
        self.process.kill()
        self.process.communicate()
        for descriptor in (self.master, self.slave, self.answers):
            os.close(descriptor)


@pytest.fixture
def terminal(request: pytest.FixtureRequest) -> Iterator[Terminal]:
    """A terminal of the usual size; a test may give it another program, or variables."""
    program, env = getattr(request, "param", (CHILD, {}))
    place = Terminal(program, **env)
    yield place
    place.end()


def on(program: str = CHILD, **env: str) -> pytest.MarkDecorator:
    """Let the terminal of a test have this program, and these variables."""
    return pytest.mark.parametrize("terminal", [(program, env)], indirect=True, ids=[""])


def shows(*words: str) -> Callable[[list[str]], bool]:
    """All of these are on the terminal."""
    return lambda lines: all(any(word in line for line in lines) for word in words)


def is_below(lines: list[str]) -> None:
    """The view is complete, and nothing is below it."""
    assert lines[-4].startswith("── night · "), lines
    assert lines[-3].split() == ["TASK", "STATE", "STEP", *lines[-3].split()[3:]], lines
    assert [line.split()[:3] for line in lines[-2:]] == [["worker:0", "running", "7"], ["worker:1", "running", "7"]]
    assert sum("night" in line for line in lines) == 1, lines


def test_lines_scroll_above_the_view(terminal: Terminal) -> None:
    """In order, complete, and tflaunch's own among them; the view is below them in every frame."""
    terminal.do("update", status())
    terminal.wait(shows("night"))
    for number in range(100):
        terminal.do("show", f"worker:{number % 2}", f"line {number}\n", 1)
    terminal.do("say", "a message of its own")
    terminal.wait(shows("tflaunch: a message of its own"), each=is_below)
    is_below(terminal.lines())
    terminal.wait(lambda _: terminal.bytes.endswith(FRAME_ENDS))
    # It is hidden only within a frame: a process that is killed leaves a working terminal.
    assert terminal.bytes.rindex(CURSOR_IS_SHOWN) > terminal.bytes.rindex(CURSOR_IS_HIDDEN)
    above = terminal.lines()[:-4]
    assert above[-1] == "tflaunch: a message of its own"
    assert above[:-1] == [f"worker:{number % 2} | line {number}" for number in range(100)][-len(above) + 1 :]


def test_a_flood_is_written_in_few_frames(terminal: Terminal) -> None:
    """Nothing is read before its end, as after Ctrl-S, and every call returns at once."""
    terminal.do("update", status())
    terminal.wait(shows("night"))
    for number in range(2000):
        terminal.do("show", "worker:0", f"line {number}\n", 10)
    terminal.do("say", "that was all")
    terminal.wait(shows("that was all"))
    assert terminal.bytes.count(b"| \x1b[0mline ") == 20_000
    assert terminal.bytes.count(CURSOR_IS_HIDDEN) < 400


@on(TERM="dumb")
def test_a_dumb_terminal_gets_lines(terminal: Terminal) -> None:
    assert terminal.do("is_live") == "not live"
    terminal.do("update", status())
    terminal.do("show", "worker:0", "one\n", 1)
    terminal.do("say", "worker:0 failed\nlogs: here", True)
    terminal.do("close")
    terminal.wait(shows("one", "tflaunch: worker:0 failed", "tflaunch: logs: here"))
    assert terminal.do("is_rich_imported") == "no"
    assert b"night" not in terminal.bytes
    assert CURSOR_IS_HIDDEN not in terminal.bytes


@pytest.mark.parametrize("terminal", [(CHILD, {}), (CHILD, {"NO_COLOR": "1"})], indirect=True, ids=["", "NO_COLOR"])
def test_a_failure_is_between_rules(terminal: Terminal) -> None:
    """They are red, its other lines, and messages that are not failures, are not; a long line stays within them.

    NO_COLOR removes only colours, of the rules, the prefixes and the view.
    """
    has_colour = "NO_COLOR" not in terminal.env
    terminal.do("update", status())
    terminal.do("show", "worker:0", "one\n", 1)
    terminal.wait(shows("night", "worker:0 | one"))
    terminal.do("say", f"worker:0 日本 failed\na\tb\x1b[2J{'x' * 200}\nlogs: here", True)
    terminal.do("close")
    terminal.wait(lambda lines: shows("─" * 79)(lines) and not shows("night")(lines))
    first, title, *body, foot = terminal.lines()
    assert first == "worker:0 | one"
    assert title == "── tflaunch: worker:0 日本 failed " + "─" * (79 - 34)
    assert "".join(body) == f"a       b\\x1b[2J{'x' * 200}logs: here"
    assert foot == "─" * 79
    colours = [terminal.emulator.buffer[row][4].fg for row in range(1, len(terminal.lines()))]
    rule = "red" if has_colour else "default"
    assert colours == [rule, *["default"] * len(body), rule]
    assert bool(re.search(rb"\x1b\[[0-9;]*(3[0-7]|9[0-7]|4[0-7])m", terminal.bytes)) == has_colour


@on(WATCHER)
def test_a_watch_draws_in_place_and_leaves_the_last(terminal: Terminal) -> None:
    for phase in ("starting", "training", "ending"):
        terminal.do("draw", status(phase=phase))
    terminal.wait(shows("ending"))
    is_below(terminal.lines())
    assert len(terminal.lines()) == 4
    terminal.do("quit")
    terminal.wait(lambda lines: len(lines) == 5 and lines[-1] == "after it")
