"""Measure how a training scales."""

from tflaunch.feature import Feature, Verb

FEATURE = Feature(
    verbs={"bench": Verb(".command:bench", "More", "Measure how a training scales.", output=".scaling:Scale")}
)
