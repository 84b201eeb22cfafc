"""Predict when memory will be full."""

from __future__ import annotations

from tflaunch.rooms import Room, Watching, always

ROOM = Room(watchers=(Watching("tflaunch.features.memory.memory_monitor:VitalsMonitor", always),))
