"""Keep modules imported between runs."""

from __future__ import annotations

from tflaunch.rooms import Room, Verb

ROOM = Room(
    note="tflaunch.features.warm.warm_servers:note_living",
    verbs={
        "warm": Verb(
            "tflaunch.features.warm.command:warm",
            "Act on runs",
            "Start, list or end the processes that keep modules imported.",
            after="kill",
            output="tflaunch.features.warm.warm_servers:WarmServers",
        ),
    },
)
