"""Let runs wait until their hosts are free."""

from __future__ import annotations

from tflaunch.rooms import Location, Room, Starting, Verb, Watching, always

ROOM = Room(
    options="tflaunch.features.queue.options:OPTIONS",
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
            "Run",
            "Show the runs that wait for hosts and GPUs.",
            after="rerun",
            output="tflaunch.features.queue.queue_list:Waiting",
        ),
    },
)
