"""Pack a run into one file."""

from __future__ import annotations

from tflaunch.feature import Feature, Verb

FEATURE = Feature(
    verbs={
        "report": Verb(
            "tflaunch.features.report.command:report",
            "More",
            "Pack a run into one file, without secrets.",
            after="events",
        ),
    }
)
