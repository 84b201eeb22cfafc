"""Measure how a training scales."""

from __future__ import annotations

from tflaunch.rooms import Room, Verb

ROOM = Room(
    verbs={
        "bench": Verb(
            "tflaunch.features.bench.command:bench",
            "More",
            "Measure how a training scales.",
            after="tensorboard",
            output="tflaunch.features.bench.scaling:Scale",
        ),
    }
)
