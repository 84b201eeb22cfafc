"""Printed lines: names and times."""

from __future__ import annotations

import io
import time

import pytest

from tflaunch.store.log_line import Line
from tflaunch.tui.log_printer import LogPrinter, local_time

pytestmark = pytest.mark.unit

MINUTE = 1_800_000_000.0
CLOCK = "%H:%M:%S"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(55.0, "55.000"), (55.0004, "55.000"), (55.9994, "55.999"), (55.9999, "56.000"), (59.99951, "00.000")],
)
def test_a_time_is_rounded_to_the_nearest_millisecond(seconds: float, text: str) -> None:
    """Rounding up may carry into the seconds."""
    minute = time.strftime("%H:%M:", time.localtime(round(MINUTE + seconds)))
    assert local_time(MINUTE + seconds, CLOCK) == minute + text


def test_lines_have_the_times_at_which_they_were_written(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """With date and milliseconds, before the name."""
    lines = [Line(MINUTE + 0.9999, "worker:0", 0, b"one"), Line(MINUTE + 1.5, "worker:10", 0, b"two")]
    LogPrinter(["worker:0", "worker:10"], True, False).print(lines)
    day = time.strftime("%Y-%m-%dT", time.localtime(MINUTE))
    clock = time.strftime("%H:%M:", time.localtime(MINUTE))
    assert capfdbinary.readouterr().out.decode().splitlines() == [
        f"{day}{clock}01.000 worker:0  | one",
        f"{day}{clock}01.500 worker:10 | two",
    ]


def test_a_terminal_gets_text_and_colours_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe gets the task's output unchanged."""
    line = Line(MINUTE, "worker:0", 0, b"\x1b]0;title\x07a\x1b[2J\x1b[31mb")
    for is_terminal, shown in ((True, b"a\x1b[31mb\x1b[0m\n"), (False, line.text + b"\n")):
        out = io.TextIOWrapper(io.BytesIO())
        monkeypatch.setattr(out, "isatty", lambda is_terminal=is_terminal: is_terminal)
        monkeypatch.setattr("sys.stdout", out)
        LogPrinter(["worker:0"], False, False).print([line])
        assert out.buffer.getvalue() == shown
