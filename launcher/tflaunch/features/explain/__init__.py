"""Say why a run failed, or what state it is in."""

from tflaunch.feature import Feature, Verb

FEATURE = Feature(
    verbs={
        "explain": Verb(
            "tflaunch.features.explain.explanation:explain",
            "Look at runs",
            "Say why a run failed, and what helps further.",
            output="tflaunch.features.explain.explanation:Explanation",
        )
    }
)
