"""Print what a shell needs to run one task by hand."""

from tflaunch.feature import Feature, Verb

FEATURE = Feature(verbs={"env": Verb(".command:env", "More", "Print shell exports to run one task by hand.")})
