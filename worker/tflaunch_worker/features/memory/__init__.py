"""Report how the memory of tasks grows, and which of them the kernel has killed because it was full."""

from tflaunch_worker.feature import Feature

FEATURE = Feature(
    "tflaunch_worker.features.memory.memory_reports:MemoryService", calls=("watch_memory",), moments=("begin_task",)
)
