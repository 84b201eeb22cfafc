"""Report how the memory of tasks grows."""

from __future__ import annotations

from tflaunch_worker.feature import Feature

FEATURE = Feature(
    "tflaunch_worker.features.memory.memory_reports:MemoryService", calls=("watch_memory",), moments=("begin_task",)
)
