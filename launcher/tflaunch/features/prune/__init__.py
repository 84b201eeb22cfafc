"""Remove what old runs have left."""

from __future__ import annotations

from tflaunch.feature import Feature, Verb, Watching, always

FEATURE = Feature(
    uses=("code",),
    fields=("retention",),
    watchers=(Watching("tflaunch.features.prune.retention:Retention", always),),
    verbs={
        "prune": Verb(
            "tflaunch.features.prune.command:prune",
            "Act on runs",
            "Remove what old runs have left.",
            after="queue",
            output="tflaunch.features.prune.pruning:Pruned",
        ),
    },
)
