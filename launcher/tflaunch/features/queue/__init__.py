"""Let runs wait until their hosts are free."""

from __future__ import annotations

from tflaunch.feature import Feature, Location, Option, Starting, Verb, Watching, always

DIRECTORY_NAME = "queue"
"""The directory of the queue, in tflaunch's home."""

FEATURE = Feature(
    needs=("records",),
    options={
        "queue": Option(
            "Begin when no other run of this user holds the hosts and GPUs (`tflaunch queue`).",
            check="tflaunch.features.queue.starter:check_start",
            is_for_later=True,
        ),
        "matrix": Option(
            "Queue a run for each value of {matrix.NAME}; with several --matrix, for each combination.",
            "NAME=V1,V2",
            is_repeated=True,
            check="tflaunch.features.queue.starter:check_start",
            is_for_later=True,
        ),
    },
    locations=(Location(("queued.json", "refused.json"), "tflaunch.features.queue.location:QueuedRun"),),
    starting=(
        Starting(
            "tflaunch.features.queue.starter:submit", lambda run: bool(run.options.extras.keys() & {"queue", "matrix"})
        ),
    ),
    watchers=(Watching("tflaunch.features.queue.waker:QueueWaker", always),),
    verbs={
        "queue": Verb(
            "tflaunch.features.queue.command:queue",
            "Act on runs",
            "Show the runs that wait for hosts and GPUs.",
            after="diff",
            output="tflaunch.features.queue.queue_list:Waiting",
        ),
    },
)
