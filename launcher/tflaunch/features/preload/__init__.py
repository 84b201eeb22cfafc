"""Fork tasks from processes that have imported their modules, also across runs."""

from __future__ import annotations

from tflaunch.rooms import Option, Room, Verb

_STARTER = "tflaunch.features.preload.preloading:Preloading"

ROOM = Room(
    fields=("preload", "warm"),
    task_starters={"preload": _STARTER, "warm": _STARTER},
    options={
        "preload": Option(
            "Import tensorflow once per host; fork the tasks from that process.",
            setting="preload",
            value='["tensorflow"]',
        ),
    },
    note="tflaunch.features.preload.warm_servers:note_living",
    functions="tflaunch.features.preload.function_code:describe",
    testing="tflaunch.features.preload.between_tests:BetweenTests",
    verbs={
        "warm": Verb(
            "tflaunch.features.preload.command:warm",
            "Act on runs",
            "Start, list or end the processes that keep modules imported.",
            after="kill",
            output="tflaunch.features.preload.warm_servers:WarmServers",
        ),
    },
)
