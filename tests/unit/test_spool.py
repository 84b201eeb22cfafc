"""The spool keeps what is not acknowledged, states what it had to drop, and gives space back."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from tflaunch_worker import spool
from tflaunch_worker.spool import Gap, Spool

pytestmark = pytest.mark.unit


def everything(kept: Spool, offset: int = 0) -> list[bytes | tuple[int, int]]:
    """Return all from ``offset`` on: bytes joined, gaps as (offset, size)."""
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


def test_what_goes_in_comes_out_from_any_offset(tmp_path: Path) -> None:
    """Offsets number the bytes of the whole output."""
    kept = Spool(str(tmp_path))
    for piece in (b"hello ", b"", b"world", b"!" * 20):
        kept.append(piece)
    assert everything(kept) == [b"hello world" + b"!" * 20]
    assert everything(kept, offset=6) == [b"world" + b"!" * 20]


def test_past_the_limit_the_gap_is_stated(tmp_path: Path) -> None:
    """Bytes are dropped from the middle of time, not from memory: place and size are known."""
    kept = Spool(str(tmp_path), limit=10)
    kept.append(b"0123456789abc")
    kept.append(b"def")
    kept.release(10)
    kept.append(b"ghi")
    assert everything(kept, offset=10) == [(10, 6), b"ghi"]


def test_released_space_is_given_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that keeps up costs one small file, however much is written."""
    monkeypatch.setattr(spool, "SEGMENT", 100)
    kept = Spool(str(tmp_path), limit=1000)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(50):
        kept.append(b"x" * 70)
        kept.release(kept.end)
    assert len(os.listdir("/proc/self/fd")) <= before + 1
    assert kept.end == 3500
    assert kept.read(kept.end, 10) == b""


def test_no_file_is_left_by_a_crash(tmp_path: Path) -> None:
    """The files have no names."""
    Spool(str(tmp_path)).append(b"words")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("small", [50, 1000])
def test_a_reader_that_keeps_up_costs_little_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: int) -> None:
    """A file is given back when all of it is acknowledged, also before it is full, if that is worth it."""
    monkeypatch.setattr(spool, "SMALL", small)
    kept = Spool(str(tmp_path))
    before = len(os.listdir("/proc/self/fd"))
    kept.append(b"x" * 70)
    kept.release(70)
    assert len(os.listdir("/proc/self/fd")) == before + (small > 70)
    kept.append(b"more")
    assert kept.read(70, 9) == b"more"


def fill_disk(patch: pytest.MonkeyPatch) -> None:
    """Leave no room on any disk."""

    def refuse(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    patch.setattr(os, "pwrite", refuse)


def test_a_full_disk_costs_words_not_the_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be written is kept in memory, as far as it goes; the rest becomes a gap."""
    monkeypatch.setattr(spool, "MEMORY", 6)
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
    """However often a new file is tried; what was held counts no more once it is acknowledged."""
    fill_disk(monkeypatch)
    monkeypatch.setattr(spool, "MEMORY", 10)
    kept = Spool(str(tmp_path))
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(9):
        kept.append(b"x" * 7)
        kept.release(kept.end)
    kept.append(b"y" * 20)
    assert everything(kept, 63) == [b"y" * 10, (73, 10)]
    assert len(os.listdir("/proc/self/fd")) == before
