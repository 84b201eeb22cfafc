"""Remove what old runs have left."""

from tflaunch.feature import ALWAYS, Feature, Verb, Watching

FEATURE = Feature(
    uses=("code",),
    fields=("retention",),
    watchers=(Watching("tflaunch.features.prune.prune:Retention", ALWAYS),),
    verbs={
        "prune": Verb(
            "tflaunch.features.prune.command:prune",
            "Act on runs",
            "Remove what old runs have left.",
            output="tflaunch.features.prune.command:Pruned",
        )
    },
)
