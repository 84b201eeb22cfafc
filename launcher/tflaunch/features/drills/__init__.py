"""Inject faults into a running job."""

from tflaunch.feature import Feature, Option, Watching

FEATURE = Feature(
    help={
        "up": """
--drill tests how a job recovers: kill, term or stop a task, or cut the link to a host, after some time of training.
If a fault cannot be injected, the exit code is 125.
  tflaunch up cluster.json --drill "kill worker:1 after 20s; stop ps:0 for 10s; cut host=b for 5s"
"""
    },
    options={
        "drill": Option(
            "Inject these faults into the running job, and report if it recovers.",
            "TEXT",
            check="tflaunch.features.drills.drill:check_start",
        )
    },
    watchers=(Watching("tflaunch.features.drills.drill:FaultInjector", "drill"),),
)
