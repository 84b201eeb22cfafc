"""Examine hosts before a run."""

from tflaunch.feature import Feature, Verb

FEATURE = Feature(
    uses=("code",),
    verbs={
        "doctor": Verb(
            "tflaunch.features.doctor.command:doctor",
            "Before a run",
            "Check the hosts of a spec before running it.",
            output="tflaunch.features.doctor.findings:Diagnosis",
        )
    },
)
