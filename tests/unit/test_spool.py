"""The spool keeps unacknowledged output, reports what it dropped, and frees space."""

import errno
import os
from pathlib import Path

import pytest

from tflaunch_worker.agent import task_output
from tflaunch_worker.agent.task_output import Gap, Spool


def everything(kept: Spool, offset: int = 0) -> list[bytes | tuple[int, int]]:
    """Return all output from ``offset`` on: bytes joined, gaps as (offset, size)."""
    parts: list[bytes | tuple[int, int]] = []
    while offset < kept.end:
        part = kept.read(offset, 5)
        if isinstance(part, Gap):
            parts.append((part.offset, part.size))
            offset += part.size
        elif parts and isinstance(parts[-1], bytes):
            parts[-1] += part
            offset += len(part)
        else:
            parts.append(part)
            offset += len(part)
    return parts


def test_what_goes_in_comes_out_from_any_offset_and_past_the_limit_the_gap_is_stated(tmp_path: Path) -> None:
    kept = Spool(str(tmp_path))
    for piece in (b"hello ", b"", b"world", b"!" * 20):
        kept.append(piece)
    assert everything(kept) == [b"hello world" + b"!" * 20]
    assert everything(kept, offset=6) == [b"world" + b"!" * 20]
    kept = Spool(str(tmp_path), limit=10)
    kept.append(b"0123456789abc")
    kept.append(b"def")
    kept.release(10)
    kept.append(b"ghi")
    assert everything(kept, offset=10) == [(10, 6), b"ghi"]


def test_released_space_is_given_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that keeps up needs one small file, however much is written."""
    monkeypatch.setattr(task_output, "NEAR", 0)
    monkeypatch.setattr(task_output, "SEGMENT", 100)
    kept = Spool(str(tmp_path), limit=1000)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(50):
        kept.append(b"x" * 70)
        kept.release(kept.end)
    assert len(os.listdir("/proc/self/fd")) <= before + 1
    assert not list(tmp_path.iterdir())  # no file is left by a crash: they are unnamed
    assert kept.end == 3500
    assert kept.read(kept.end, 10) == b""


def test_a_reader_that_keeps_up_costs_no_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Output that is briefly unread waits in memory; small writes are combined there."""
    monkeypatch.setattr(task_output, "NEAR", 100)
    monkeypatch.setattr(task_output, "PIECE", 20)
    fill_disk(monkeypatch)
    kept = Spool(str(tmp_path))
    for _ in range(30):
        for _ in range(10):
            kept.append(b"0123456789")
        assert kept.read(kept.released, 1000) == b"0123456789" * 2
        assert everything(kept, kept.released) == [b"0123456789" * 10]
        kept.release(kept.end)


def test_a_slow_reader_has_the_disk_until_it_has_caught_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Afterwards output is kept in memory again, and the file is freed before it is full."""
    monkeypatch.setattr(task_output, "NEAR", 10)
    kept = Spool(str(tmp_path))
    before = len(os.listdir("/proc/self/fd"))
    for piece in (b"near", b"and then disk", b"more"):
        kept.append(piece)
    assert len(os.listdir("/proc/self/fd")) == before + 1
    kept.release(8)
    kept.append(b"still disk")
    assert everything(kept, 8) == [b"then diskmorestill disk"]
    kept.release(kept.end)
    assert len(os.listdir("/proc/self/fd")) == before
    kept.append(b"near again")
    assert len(os.listdir("/proc/self/fd")) == before
    assert everything(kept, kept.released) == [b"near again"]


def fill_disk(patch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    patch.setattr(os, "pwrite", refuse)


def test_a_full_disk_costs_words_not_the_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be written is kept in memory up to a limit; the rest becomes a gap."""
    monkeypatch.setattr(task_output, "NEAR", 0)
    monkeypatch.setattr(task_output, "MEMORY", 6)
    kept = Spool(str(tmp_path))
    kept.append(b"disk")
    with monkeypatch.context() as patch:
        fill_disk(patch)
        kept.append(b"held")
        kept.append(b"cut off")
    kept.append(b"disk again")
    assert everything(kept) == [b"diskheldcu", (10, 5), b"disk again"]
    kept.release(15)
    assert everything(kept, 15) == [b"disk again"]


def test_a_full_disk_costs_no_descriptors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However often a new file is tried; acknowledged output no longer counts."""
    fill_disk(monkeypatch)
    monkeypatch.setattr(task_output, "NEAR", 0)
    monkeypatch.setattr(task_output, "MEMORY", 10)
    kept = Spool(str(tmp_path))
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(9):
        kept.append(b"x" * 7)
        kept.release(kept.end)
    kept.append(b"y" * 20)
    assert everything(kept, 63) == [b"y" * 10, (73, 10)]
    assert len(os.listdir("/proc/self/fd")) == before
