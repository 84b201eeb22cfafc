"""What a supervisor makes of output that goes on, or ends, further on than it knows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tflaunch.agents.output import Output, Times

pytestmark = pytest.mark.unit

ABOUT = {"task": "worker:0", "attempt": 0}


class Log:
    """A log of which an earlier supervisor has written ``size`` bytes, None if there was none."""

    def __init__(self, size: int | None) -> None:
        self.said: list[str] = []
        self._size = size

    def write(self, task: str, attempt: int, data: bytes, times: Times, done: Callable[[], None]) -> None:
        """Accept output."""
        self.said.append(data.decode())

    def kept(self, task: str, attempt: int) -> int | None:
        """Return how much an earlier supervisor has written."""
        return self._size

    def lose(self, task: str, attempt: int, size: int) -> None:
        """State a gap."""
        self.said.append(f"{size} are missing")

    def end(self, task: str, attempt: int) -> None:
        """Accept the end."""
        self.said.append("end")


def output(log: Log) -> Output:
    """Return the output of a host."""
    return Output(log, lambda: None, lambda theirs: theirs, lambda *_: True)


def frame(kind: str, offset: int, **more: Any) -> dict[str, Any]:
    """Return a frame."""
    return {"kind": kind, **ABOUT, "offset": offset, **more}


@pytest.mark.parametrize("size", [0, 40])
def test_what_an_earlier_supervisor_could_not_store_is_missing(size: int) -> None:
    """It has acknowledged 100 bytes, and the disk was full: the agent has discarded them."""
    log = Log(size)
    heard = output(log)
    heard.read(frame("output", 100, times=[[100, 1.0]]), b"more")
    heard.read(frame("output_ended", 104), b"")
    assert log.said == [f"{100 - size} are missing", "more", "end"]


def test_output_that_has_ended_may_be_missing() -> None:
    """Nothing of it comes again but its end."""
    log = Log(40)
    output(log).read(frame("output_ended", 100), b"")
    assert log.said == ["60 are missing", "end"]


@pytest.mark.parametrize("kind", ["output", "output_ended"])
@pytest.mark.parametrize("is_first", [True, False])
def test_no_agent_leaves_out_what_was_never_acknowledged(kind: str, is_first: bool) -> None:
    """Without an earlier supervisor, and after what this one has taken."""
    heard = output(Log(None if is_first else 0))
    if not is_first:
        heard.read(frame("output", 0, times=[[0, 1.0]]), b"some")
    with pytest.raises(ValueError, match="goes on at byte 100"):
        heard.read(frame(kind, 100, times=[[100, 1.0]]), b"more" if kind == "output" else b"")
