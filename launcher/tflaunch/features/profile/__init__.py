"""Sample the stacks of tasks that train."""

from tflaunch.feature import Feature, Verb, Watching

FEATURE = Feature(
    verbs={
        "profile": Verb(
            "tflaunch.features.profile.command:profile",
            "Look at runs",
            "Profile tasks of a live run.",
            output="tflaunch.features.profile.command:Profile",
        )
    },
    watchers=(Watching("tflaunch.features.profile.profiler:Profiler", requests=("profile",)),),
)
