"""Write a first spec."""

from __future__ import annotations

from tflaunch.rooms import Room, Verb

ROOM = Room(
    verbs={
        "init": Verb(
            "tflaunch.features.init.command:init",
            "Before a run",
            "Write a first spec, with comments.",
            after="Before a run",
        ),
    }
)
