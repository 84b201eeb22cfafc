"""Sample the stacks of tasks that train."""

from tflaunch.feature import Feature, Verb, Watching

FEATURE = Feature(
    verbs={
        "profile": Verb(".command:profile", "Look at runs", "Profile tasks of a live run.", output=".command:Profile")
    },
    watchers=(Watching(".profiler:Profiler", requests=("profile",)),),
)
