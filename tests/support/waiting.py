"""How tests wait: for an event or a condition, with one patience that no healthy machine needs."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from typing import TypeVar

PATIENCE = 600
"""Seconds until a test gives up: it fails for a fault, never because the machine is busy."""
_PAUSE = 0.02  # seconds between looks

Found = TypeVar("Found")


def wait_until(
    condition: Callable[[], Found | None],
    running: subprocess.Popen[str] | None = None,
    otherwise: str = "it did not happen",
) -> Found:
    """Wait for a condition that no event reports, and return its value.

    Args:
        condition: returns something true when it holds.
        running: a command that must not end before.
        otherwise: what the failure says.
    """
    end = time.monotonic() + PATIENCE
    while not (found := condition()):
        assert running is None or running.poll() is None, running.communicate()
        assert time.monotonic() < end, otherwise
        time.sleep(_PAUSE)
    return found
