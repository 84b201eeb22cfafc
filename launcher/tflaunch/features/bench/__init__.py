"""Measure how a training scales."""

from tflaunch.feature import Feature, Verb

FEATURE = Feature(
    verbs={
        "bench": Verb(
            "tflaunch.features.bench.command:bench",
            "More",
            "Measure how a training scales.",
            output="tflaunch.features.bench.scaling:Scale",
        )
    }
)
