"""Remove what old runs have left."""

from tflaunch.feature import ALWAYS, Feature, Verb, Watching

FEATURE = Feature(
    uses=("code",),
    fields=("retention",),
    watchers=(Watching(".prune:Retention", ALWAYS),),
    verbs={"prune": Verb(".command:prune", "Act on runs", "Remove what old runs have left.", output=".command:Pruned")},
)
