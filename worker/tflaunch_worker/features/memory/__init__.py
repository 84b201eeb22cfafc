"""Report how the memory of tasks grows."""

from __future__ import annotations

from tflaunch_worker.rooms import Room

ROOM = Room(
    "tflaunch_worker.features.memory.memory_reports:MemoryService", calls=("watch_memory",), moments=("begin_task",)
)
