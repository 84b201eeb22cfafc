"""Predict when memory will be full."""

from __future__ import annotations

from tflaunch.rooms import Room

ROOM = Room()
