"""Inject faults into a running job."""

from __future__ import annotations

from tflaunch.rooms import Room

ROOM = Room()
