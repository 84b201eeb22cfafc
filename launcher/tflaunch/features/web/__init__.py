"""Show runs in a browser."""

from __future__ import annotations

from tflaunch.rooms import Room, Verb, Watching, if_given

ROOM = Room(
    options="tflaunch.features.web.options:OPTIONS",
    watchers=(Watching("tflaunch.features.web.page_beside:PageBeside", if_given("web")),),
    verbs={
        "web": Verb("tflaunch.features.web.command:web", "Look at runs", "Show runs in a browser.", after="events"),
    },
)
