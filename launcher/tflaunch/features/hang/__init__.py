"""Find out where tasks are, and which one the others wait for."""

from tflaunch.feature import ALWAYS, Feature, Verb, Watching

FEATURE = Feature(
    verbs={
        "stacks": Verb(
            ".command:stacks", "Look at runs", "Show where tasks are and what they wait for.", output=".hang:Stacks"
        )
    },
    watchers=(Watching(".watcher:HangWatcher", ALWAYS, ("stacks",)),),
)
