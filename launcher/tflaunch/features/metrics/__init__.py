"""Serve measurements to Prometheus."""

from __future__ import annotations

from tflaunch.rooms import Room, Watching

ROOM = Room(
    watchers=(
        Watching(
            "tflaunch.features.metrics.metrics:Metrics", lambda supervision: supervision.config.metrics_port is not None
        ),
    )
)
