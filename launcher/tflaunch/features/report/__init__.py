"""Pack a run into one file."""

from tflaunch.feature import Feature, Verb

FEATURE = Feature(
    verbs={"report": Verb(".support_bundle:report", "More", "Pack a run into one file, without secrets.")}
)
