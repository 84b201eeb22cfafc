"""Inject faults into a running job."""

from __future__ import annotations

from tflaunch.feature import Feature, Option, Watching, if_given

FEATURE = Feature(
    options={
        "drill": Option(
            "Inject these faults into the running job, and report if it recovers.",
            "TEXT",
            check="tflaunch.features.drills.drill:check_start",
            is_for_run=False,
        ),
    },
    watchers=(Watching("tflaunch.features.drills.faults:FaultInjector", if_given("drill")),),
)
