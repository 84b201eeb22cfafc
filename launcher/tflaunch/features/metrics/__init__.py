"""Serve measurements to Prometheus."""

from __future__ import annotations

from tflaunch.rooms import Room, Watching, if_given

ROOM = Room(
    options="tflaunch.features.metrics.options:OPTIONS",
    watchers=(Watching("tflaunch.features.metrics.metrics:Metrics", if_given("metrics_port")),),
)
