"""Find out where tasks are, and which one the others wait for."""

from tflaunch.feature import ALWAYS, Feature, Verb, Watching

FEATURE = Feature(
    verbs={
        "stacks": Verb(
            "tflaunch.features.hang.command:stacks",
            "Look at runs",
            "Show where tasks are and what they wait for.",
            output="tflaunch.features.hang.hang:Stacks",
        )
    },
    watchers=(Watching("tflaunch.features.hang.watcher:HangWatcher", ALWAYS, ("stacks",)),),
)
