"""Bring a task's `breakpoint()` to a terminal."""

from tflaunch_worker.feature import Feature, Variable

FEATURE = Feature(
    "tflaunch_worker.features.debug.breakpoints:HostBreakpoints",
    calls=("attach_debugger",),
    moments=("begin_task",),
    variables={"PYTHONBREAKPOINT": Variable("tflaunch_breakpoint.stop", "in_tasks")},
)
