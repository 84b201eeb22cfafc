"""Bring a task's `breakpoint()` to a terminal."""

from tflaunch.feature import Feature, Verb, Watching

LINK_LOST = "link_lost"
"""Why a terminal is not attached any more, if no agent says it."""

FEATURE = Feature(
    verbs={"debug": Verb(".command:debug", "Look at runs", "Debug a task that waits at a breakpoint().")},
    watchers=(
        Watching(".debugger_relay:DebuggerRelay", requests=("debug", "debug_line", "debug_read", "debug_continue")),
    ),
)
