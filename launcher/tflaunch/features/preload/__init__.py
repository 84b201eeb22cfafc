"""Fork tasks from processes that have imported their modules, also across runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tflaunch.feature import Feature, Option, Verb, Watching

if TYPE_CHECKING:
    from tflaunch.runtime.watchers import Supervision

_STARTER = "tflaunch.features.preload.preloading:Preloading"


def _may_gain(supervision: Supervision) -> bool:
    """Return whether the end of a run might say what preloading would have saved."""
    plan = supervision.job.plan
    return (
        not (plan.preload or plan.function or supervision.config.is_quiet or supervision.has_taken_over)
        and len(plan.tasks) > len(plan.hosts)
        and any("python" in task.argv[0] for task in plan.tasks)
    )


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
    watchers=(Watching("tflaunch.features.preload.import_hint:ImportHint", _may_gain),),
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
