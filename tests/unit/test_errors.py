"""What the system refuses, in one sentence; a run that needs too many descriptors is refused before it starts."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from tflaunch import descriptors
from tflaunch.errors import TflaunchError, describe_os_error

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


def test_a_run_with_room_is_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to the exact limit, and without a limit."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1, descriptors.needed(10, 100)))
    descriptors.require(10, 100)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1, resource.RLIM_INFINITY))
    descriptors.require(10, 10**9)


def test_a_run_without_room_is_refused_with_the_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """A link per host; a log and its index per task."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1, 1024))
    with pytest.raises(
        TflaunchError, match=r"1000 tasks on 10 hosts need 2110 .* may have 1024; raise .*ulimit"
    ) as refusal:
        descriptors.require(10, 1000)
    assert refusal.value.exit_code == 3
