"""Show what `up` would do."""

from tflaunch.feature import Feature, Verb

FEATURE = Feature(
    verbs={
        "plan": Verb(
            "tflaunch.features.plan.command:plan",
            "More",
            "Show what `up` would do.",
            output="tflaunch.features.plan.command:PLAN",
        )
    }
)
