"""`up` in a terminal that is resized, and where Ctrl-C and Ctrl-Z are pressed: no piece of the view is left."""

import os
import random
import re
import select
import shlex
import signal
import termios
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from support.emulator import Emulator
from support.launch import LONG, PATIENCE, Launch
from support.specs import TFLAUNCH
from support.terminals import Terminal
from support.waiting import wait_until

CTRL_C, CTRL_Z = b"\x03", b"\x1a"
COUNTING = """
trap 'trap "" TERM; n=0; while [ $n -lt 20 ]; do n=$((n + 1)); echo "saving $n end"; sleep 0.02; done; exit 3' TERM
i=0; while :; do i=$((i + 1)); echo "line $i end"; sleep 0.05; done
"""
OF_A_VIEW = re.compile(r"── (?!tflaunch: )|^TASK +STATE|^worker:\d +(running|stopping|starting|stopped)")


class UpTerminal(Terminal):
    """A terminal with `tflaunch up` as its job in the foreground, and what it shows."""

    def __init__(self, launch: Launch, spec: Path, *options: str, wraps: bool = True) -> None:
        self.emulator = Emulator(80, 24, wraps)
        command = shlex.join([str(TFLAUNCH), "up", str(spec), *options])
        super().__init__(launch, f"stty cols 80 rows 24; unset NO_COLOR; export TERM=xterm; exec {command}")

    def resize(self, columns: int, rows: int) -> None:
        """Resize the terminal; what was written before is shown before."""
        while self.read(0):
            pass
        super().resize(columns, rows)
        self.emulator.resize(columns, rows)

    def read(self, patience: float) -> bool:
        """Show what comes within this time; return whether anything did."""
        try:
            data = os.read(self.master, 65536) if select.select([self.master], [], [], patience)[0] else b""
        except OSError:  # its last process has closed it
            return False
        self.emulator.feed(data)
        return bool(data)

    def until(self, condition: Callable[[list[str]], bool]) -> None:
        """Read until this holds of all lines."""

        def holds() -> bool:
            self.read(0.1)
            return condition(self.emulator.lines())

        wait_until(holds)

    def until_lines(self, count: int) -> None:
        """Read until that many more lines of a task are shown, with the view below them."""
        last = self.last_line()
        self.until(lambda lines: self.last_line() >= last + count and any("── " in line for line in lines[-12:]))

    def last_line(self) -> int:
        """Return the number of the last line of a task that is shown."""
        return max(map(int, re.findall(r"\| line (\d+) end", "\n".join(self.emulator.last_lines()))), default=0)

    def keeps_unread(self) -> bool:
        """Whether Ctrl-C leaves what was not read yet."""
        return bool(termios.tcgetattr(self.master)[3] & termios.NOFLSH)

    def end(self) -> list[str]:
        """Wait for the end of the command, and return all lines."""
        self.until(lambda _: self.process.poll() is not None and not self.read(0.2))
        return self.emulator.lines()


@pytest.fixture(params=[True, False], ids=["wraps", "cuts"])
def terminal(launch: Launch, request: pytest.FixtureRequest) -> Iterator[UpTerminal]:
    """A terminal in which two tasks count."""
    spec = launch.shell(COUNTING, strategy="none", timeouts={"grace": PATIENCE})
    place = UpTerminal(launch, spec, "--no-fold", wraps=request.param)
    yield place
    os.close(place.master)


def assert_clean(launch: Launch, lines: list[str]) -> None:
    """Every line of each log is shown once, in order, and nothing of a view."""
    assert not [line for line in lines if OF_A_VIEW.search(line)], "\n".join(lines)
    for task in ("worker:0", "worker:1"):
        shown = [line.partition("| ")[2] for line in lines if line.startswith(f"{task} | ")]
        assert shown == launch.log(task).splitlines(), task


@pytest.mark.parametrize("times", [1, 2])
def test_resizes_and_ctrl_c_leave_nothing_of_the_view(launch: Launch, terminal: UpTerminal, times: int) -> None:
    """Narrower, wider, lower, taller, twice at once; Ctrl-C once lets the tasks save, twice kills them."""
    terminal.until_lines(5)
    drawn = random.Random(times)
    sizes = [(40, 24), (120, 24), (120, 8), (60, 40)]
    sizes += [(drawn.randint(40, 150), drawn.randint(6, 60)) for _ in range(6 if LONG else 2)]
    for size in sizes:
        terminal.resize(*size)
        terminal.until_lines(drawn.randint(1, 5))
        terminal.resize(*sizes[0])
        terminal.resize(*size)
    assert terminal.keeps_unread()
    terminal.type(CTRL_C)
    terminal.until(lambda lines: any("ending worker:0" in line for line in lines))
    if times == 2:
        terminal.type(CTRL_C)
    lines = terminal.end()
    assert (terminal.process.returncode, terminal.keeps_unread()) == (130, False)
    assert_clean(launch, lines)
    assert times == 2 or any("saving 20 end" in line for line in lines)


def test_ctrl_z_leaves_nothing_of_the_view(launch: Launch, terminal: UpTerminal) -> None:
    """While the command is stopped, what others write is below its lines, and the view comes back with `fg`."""
    terminal.until_lines(5)
    terminal.type(CTRL_Z)
    process = psutil.Process(terminal.process.pid)
    terminal.until(lambda _: process.status() == psutil.STATUS_STOPPED)
    while terminal.read(0.1):
        pass
    assert not [line for line in terminal.emulator.lines() if OF_A_VIEW.search(line)]
    terminal.emulator.feed(b"\r\n[1]+ Stopped\r\n$ fg\r\n")
    process.send_signal(signal.SIGCONT)
    terminal.until_lines(5)
    terminal.type(CTRL_C)
    lines = terminal.end()
    assert {"[1]+ Stopped", "$ fg"} <= set(lines)
    assert_clean(launch, lines)


def test_in_a_pipe_lines_are_folded_only_if_asked(launch: Launch) -> None:
    meet = "touch $TFLAUNCH_TASK.up; until [ $(ls *.up | wc -l) = 8 ]; do sleep 0.02; done; "
    spec = launch.shell(meet + "echo same", 8, strategy="none")
    assert launch.up(spec, "--fold").stdout.count("same") < 8
    assert launch.up(spec).stdout.count("same") == 8
