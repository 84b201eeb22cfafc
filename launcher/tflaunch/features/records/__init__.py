"""Run a plan again, and compare runs."""

from __future__ import annotations

from tflaunch.rooms import Room, Verb

ROOM = Room(
    verbs={
        "rerun": Verb(
            "tflaunch.features.records.rerun:rerun", "Run", "Run the plan of an earlier run again.", after="run"
        ),
        "diff": Verb(
            "tflaunch.features.records.diff:diff",
            "Look at runs",
            "Show what differs between two runs.",
            after="fetch",
            output="tflaunch.features.records.output:DIFF",
        ),
    }
)
