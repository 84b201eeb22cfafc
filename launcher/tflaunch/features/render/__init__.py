"""Write a spec as files for other launchers."""

from tflaunch.feature import Feature, Verb

FEATURE = Feature(
    uses=("kubernetes",),
    verbs={"render": Verb(".command:render", "More", "Print a spec as files for another launcher.")},
)
