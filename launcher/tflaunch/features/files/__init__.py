"""Fetch the files that tasks have written."""

from tflaunch.feature import Feature, Option, Verb, Watching

FEATURE = Feature(
    fields=("collect",),
    problems=".file_patterns:find_problems",
    options={
        "collect_every": Option(
            "Fetch the files of the spec's `collect` at this interval, too, while the tasks run.",
            "DURATION",
            read=".collector:read_interval",
            check=".collector:check_start",
        )
    },
    verbs={"fetch": Verb(".fetch:fetch", "Act on runs", "Fetch files of an ended run from its hosts.")},
    watchers=(Watching(".collector:Collector", "collect"),),
)
