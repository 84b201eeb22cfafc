"""A run that needs more file descriptors than its supervisor may open is refused before anything starts."""

from __future__ import annotations

import resource

import pytest

from tflaunch import descriptors
from tflaunch.errors import TflaunchError

pytestmark = pytest.mark.unit


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
