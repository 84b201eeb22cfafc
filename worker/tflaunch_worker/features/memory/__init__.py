"""Report how tasks' memory grows, and which tasks the kernel killed because of it."""

from tflaunch_worker.feature import Feature

FEATURE = Feature(
    "tflaunch_worker.features.memory.memory_reports:MemoryService", calls=("watch_memory",), moments=("begin_task",)
)
