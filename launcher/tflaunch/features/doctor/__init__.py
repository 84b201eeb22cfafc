"""Examine hosts before a run."""

from tflaunch.feature import Feature, Verb

FEATURE = Feature(
    uses=("code",),
    verbs={
        "doctor": Verb(
            ".command:doctor",
            "Before a run",
            "Check the hosts of a spec before running it.",
            output=".findings:Diagnosis",
        )
    },
)
