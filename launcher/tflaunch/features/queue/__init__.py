"""Let runs wait until their hosts are free."""

from __future__ import annotations

from tflaunch.rooms import Room, Verb, Watching, always

ROOM = Room(
    watchers=(Watching("tflaunch.features.queue.waker:QueueWaker", always),),
    verbs={
        "queue": Verb(
            "tflaunch.features.queue.command:queue",
            "Run",
            "Show the runs that wait for hosts and GPUs.",
            after="rerun",
            output="tflaunch.features.queue.output:QUEUE",
        ),
    },
)
