"""Errors of the system, in one sentence."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tflaunch.errors import describe_os_error

pytestmark = pytest.mark.unit


def test_a_file_that_is_not_ready_is_no_lack_of_processes():
    """The kernel says EAGAIN for both."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    with open(reading, "rb"), open(writing, "wb"), pytest.raises(BlockingIOError) as raised:
        os.read(reading, 1)
    assert describe_os_error(raised.value) == "Resource temporarily unavailable"


def test_what_is_in_the_way_of_a_file_is_named(tmp_path: Path):
    """And not the file that was to be renamed."""
    (tmp_path / "part").touch()
    (tmp_path / "target").mkdir()
    with pytest.raises(IsADirectoryError) as raised:
        (tmp_path / "part").replace(tmp_path / "target")
    assert describe_os_error(raised.value) == f"{tmp_path}/target: Is a directory"
