"""Run a plan again, and compare runs."""

from tflaunch.feature import ALWAYS, Feature, Verb, Watching

FEATURE = Feature(
    verbs={
        "rerun": Verb(".commands:rerun", "Act on runs", "Run the plan of an earlier run again."),
        "diff": Verb(".commands:diff", "More", "Show what differs between two runs.", output=".run_diff:Differences"),
    },
    watchers=(Watching(".run_record:Recorder", ALWAYS),),
)
