"""Fork tasks from processes that have imported their modules, also across runs."""

from __future__ import annotations

from tflaunch.feature import Feature, Option, Verb

_STARTER = "tflaunch.features.preload.preloading:Preloading"

FEATURE = Feature(
    fields=("preload", "warm"),
    problems="tflaunch.features.preload.preloading:find_problems",
    task_starters={"preload": _STARTER, "warm": _STARTER},
    help={
        "up": """
--preload is --set 'preload=["tensorflow"]': Python tasks are forked from a process that has already imported
TensorFlow, where that is safe.
"""
    },
    options={
        "preload": Option(
            "Import tensorflow once per host; fork the tasks from that process.",
            setting="preload",
            value='["tensorflow"]',
        ),
    },
    verbs={
        "warm": Verb(
            "tflaunch.features.preload.command:warm",
            "More",
            "Start, list or end the processes that keep modules imported.",
            after="kill",
            output="tflaunch.features.preload.warm_servers:WarmServers",
        ),
    },
)
