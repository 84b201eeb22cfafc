"""The spool keeps what is not acknowledged, states what it had to drop, and gives space back."""

from __future__ import annotations

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


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_costs_words_not_the_task(tmp_path: Path) -> None:
    """What cannot be written becomes a gap."""
    kept = Spool(str(tmp_path))
    kept.append(b"kept")
    full = os.open("/dev/full", os.O_RDWR)
    os.dup2(full, kept._parts[0].file)  # type: ignore[union-attr]
    kept.append(b"lost")
    assert kept.end == 8
    part = kept.read(4, 10)
    assert isinstance(part, Gap)
    assert part.size == 4
