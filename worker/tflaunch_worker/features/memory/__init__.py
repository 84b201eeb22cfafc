"""Report how the memory of tasks grows."""

from __future__ import annotations

from tflaunch_worker.rooms import Room

ROOM = Room("tflaunch_worker.agent.vitals:MemoryService", calls=("watch_memory",), moments=("begin_task",))
