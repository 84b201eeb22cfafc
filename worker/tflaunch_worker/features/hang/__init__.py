"""Find out where tasks are, and what they wait for."""

from tflaunch_worker.feature import Feature

FEATURE = Feature(
    "tflaunch_worker.features.hang.evidence:TaskEvidence",
    calls=("find_signs", "gather_evidence"),
    moments=("look_at_hang",),
)
