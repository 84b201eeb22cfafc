"""A run that needs more open files than its supervisor may have is refused before anything starts."""

from __future__ import annotations

import resource

import pytest

from tflaunch import descriptors
from tflaunch.errors import TflaunchError

pytestmark = pytest.mark.unit


def test_a_run_with_room_is_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to the last file; and where there is no limit."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1, descriptors.needed(10, 100)))
    descriptors.require(10, 100)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1, resource.RLIM_INFINITY))
    descriptors.require(10, 10**9)


def test_a_run_without_room_is_refused_with_the_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """A link for each host, a log and its index for each task."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1, 1024))
    with pytest.raises(
        TflaunchError, match=r"1000 tasks on 10 hosts need 2110 .* may have 1024; raise .*ulimit"
    ) as refusal:
        descriptors.require(10, 1000)
    assert refusal.value.exit_code == 3
