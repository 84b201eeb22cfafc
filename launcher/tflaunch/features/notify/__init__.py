"""Tell somebody how a run has ended."""

from __future__ import annotations

from tflaunch.rooms import Room

ROOM = Room()
