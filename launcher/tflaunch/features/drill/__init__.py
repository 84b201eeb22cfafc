"""Show whether a training survives a fault: that it goes on from where it was."""

from tflaunch.feature import Feature, Verb

FEATURE = Feature(
    needs=("prune",),
    verbs={
        "drill": Verb(
            ".command:drill", "Before a run", "Show whether a training goes on after a fault.", output=".command:Drill"
        )
    },
)
