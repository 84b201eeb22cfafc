"""Remove what old runs have left."""

from tflaunch.feature import Feature, Verb, Watching, always

FEATURE = Feature(
    uses=("code",),
    fields=("retention",),
    watchers=(Watching("tflaunch.features.prune.prune:Retention", always),),
    verbs={
        "prune": Verb(
            "tflaunch.features.prune.command:prune",
            "Act on runs",
            "Remove what old runs have left.",
            after="queue",
            output="tflaunch.features.prune.command:Pruned",
        ),
    },
)
