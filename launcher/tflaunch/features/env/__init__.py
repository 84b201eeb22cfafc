"""Print what a shell needs to run one task by hand."""

from tflaunch.feature import Feature, Verb

FEATURE = Feature(
    verbs={"env": Verb("tflaunch.features.env.command:env", "More", "Print shell exports to run one task by hand.")}
)
