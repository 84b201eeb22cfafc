"""Measure how a training scales."""

from __future__ import annotations

from tflaunch.rooms import Room, Verb

ROOM = Room(
    verbs={
        "scale": Verb(
            "tflaunch.features.scale.command:scale",
            "Before a run",
            "Measure how a training scales, and what limits it.",
            after="doctor",
            output="tflaunch.features.scale.output:Scale",
        ),
    }
)
