"""Inject faults into a running job."""

from __future__ import annotations

from tflaunch.rooms import Room, Watching, if_given

ROOM = Room(
    options="tflaunch.features.drills.options:OPTIONS",
    watchers=(Watching("tflaunch.features.drills.faults:FaultInjector", if_given("drill")),),
)
