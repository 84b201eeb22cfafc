"""Read the programs of tasks, without running them."""

from __future__ import annotations

from tflaunch.rooms import Room

ROOM = Room()
