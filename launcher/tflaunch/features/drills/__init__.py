"""Inject faults into a running job."""

from __future__ import annotations

from tflaunch.rooms import Room, Watching

ROOM = Room(
    watchers=(
        Watching("tflaunch.features.drills.faults:FaultInjector", lambda supervision: bool(supervision.config.faults)),
    )
)
