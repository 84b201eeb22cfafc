"""Say why a run failed, or what state it is in."""

from tflaunch.feature import Feature, Verb

FEATURE = Feature(
    verbs={
        "explain": Verb(
            ".explanation:explain",
            "Look at runs",
            "Say why a run failed, and what helps further.",
            output=".explanation:Explanation",
        )
    }
)
