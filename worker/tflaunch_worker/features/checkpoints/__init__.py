"""Copy checkpoints from hosts and to them."""

from __future__ import annotations

from tflaunch_worker.feature import Feature

FEATURE = Feature(
    "tflaunch_worker.features.checkpoints.checkpoint_copies:CheckpointCopies",
    calls=("find_checkpoint", "read_checkpoint", "store_checkpoint", "write_checkpoint", "place_checkpoint"),
)
