"""Show runs in a browser."""

from __future__ import annotations

from tflaunch.rooms import Room, Verb

ROOM = Room(
    verbs={
        "web": Verb("tflaunch.features.web.command:web", "Look at runs", "Show runs in a browser.", after="events"),
    }
)
