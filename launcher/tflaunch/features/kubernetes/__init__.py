"""Run each task in a pod of its own."""

from __future__ import annotations

from tflaunch.rooms import Room

ROOM = Room()
