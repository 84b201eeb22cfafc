"""Write a first spec."""

from tflaunch.feature import Feature, Verb

FEATURE = Feature(
    needs=("programs",), verbs={"init": Verb(".command:init", "Before a run", "Write a first spec, with comments.")}
)
