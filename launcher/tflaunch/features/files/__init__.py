"""Fetch the files that tasks have written."""

from tflaunch.feature import Feature, Option, Verb, Watching

FEATURE = Feature(
    fields=("collect",),
    problems="tflaunch.features.files.file_patterns:find_problems",
    options={
        "collect_every": Option(
            "Fetch the files of the spec's `collect` at this interval, too, while the tasks run.",
            "DURATION",
            read="tflaunch.features.files.collector:read_interval",
            check="tflaunch.features.files.collector:check_start",
        )
    },
    verbs={
        "fetch": Verb(
            "tflaunch.features.files.fetch:fetch", "Act on runs", "Fetch files of an ended run from its hosts."
        )
    },
    watchers=(Watching("tflaunch.features.files.collector:Collector", "collect"),),
)
