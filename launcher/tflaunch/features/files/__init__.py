"""Fetch the files that tasks have written."""

from __future__ import annotations

from tflaunch.rooms import Room, Verb, Watching

ROOM = Room(
    fields=("collect",),
    options="tflaunch.features.files.options:OPTIONS",
    verbs={
        "fetch": Verb(
            "tflaunch.features.files.fetch:fetch",
            "Look at runs",
            "Fetch files of an ended run from its hosts.",
            after="report",
        ),
    },
    watchers=(
        Watching(
            "tflaunch.features.files.collector:Collector",
            lambda supervision: bool(supervision.job.original.collect),
        ),
    ),
)
