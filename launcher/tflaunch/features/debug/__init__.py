"""Bring a task's `breakpoint()` to a terminal."""

from __future__ import annotations

from tflaunch.rooms import Room, Verb

ROOM = Room(
    verbs={
        "debug": Verb(
            "tflaunch.features.debug.command:debug",
            "Look at runs",
            "Debug a task that waits at a breakpoint().",
            after="profile",
        ),
    }
)
