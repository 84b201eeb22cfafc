"""Run a plan again, and compare runs."""

from tflaunch.feature import ALWAYS, Feature, Verb, Watching

FEATURE = Feature(
    verbs={
        "rerun": Verb(
            "tflaunch.features.records.commands:rerun", "Act on runs", "Run the plan of an earlier run again."
        ),
        "diff": Verb(
            "tflaunch.features.records.commands:diff",
            "More",
            "Show what differs between two runs.",
            output="tflaunch.features.records.run_diff:Differences",
        ),
    },
    watchers=(Watching("tflaunch.features.records.run_record:Recorder", ALWAYS),),
)
