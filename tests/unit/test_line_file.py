"""Files of lines: an incomplete last line of a killed writer is removed before the next is written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tflaunch.store.append_file import append, open_to_append

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"", b""),
        (b"one\n", b"one\n"),
        (b"one\ntw", b"one\n"),
        (b"on", b""),
        (b"one\n" + b"x" * 200_000, b"one\n"),
        (b"y" * 200_000 + b"\nx", b"y" * 200_000 + b"\n"),
    ],
)
def test_only_whole_lines_are_kept(tmp_path: Path, before: bytes, after: bytes) -> None:
    path = tmp_path / "lines"
    path.write_bytes(before)
    descriptor = open_to_append(path)
    os.write(descriptor, b"next\n")
    os.close(descriptor)
    assert path.read_bytes() == after + b"next\n"


def test_a_new_file_is_private(tmp_path: Path) -> None:
    os.close(open_to_append(tmp_path / "lines"))
    assert (tmp_path / "lines").stat().st_mode & 0o077 == 0


def test_lines_are_appended_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    descriptor = open_to_append(tmp_path / "lines")
    assert append(descriptor, b"one\n")
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, data: write(file, data[:5]))
    assert not append(descriptor, b"two and more\n")
    assert append(descriptor, b"two\n")
    assert (tmp_path / "lines").read_bytes() == b"one\ntwo\n"
    os.close(descriptor)
