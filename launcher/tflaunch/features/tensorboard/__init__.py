"""Show event files with TensorBoard."""

from __future__ import annotations

from tflaunch.rooms import Room, Verb

ROOM = Room(
    verbs={
        "tensorboard": Verb(
            "tflaunch.cli.tensorboard:tensorboard",
            "Look at runs",
            "Show the event files of a run with TensorBoard.",
            after="web",
        ),
    }
)
