"""Show event files with TensorBoard."""

from tflaunch.feature import Feature, Verb

FEATURE = Feature(
    verbs={"tensorboard": Verb(".command:tensorboard", "More", "Show the event files of a run with TensorBoard.")}
)
