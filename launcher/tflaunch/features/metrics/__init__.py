"""Serve measurements to Prometheus."""

from __future__ import annotations

from tflaunch.rooms import Room

ROOM = Room()
