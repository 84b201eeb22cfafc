"""Predict when memory will be full."""

from __future__ import annotations

from tflaunch.feature import Feature, Watching, always

FEATURE = Feature(watchers=(Watching("tflaunch.features.memory.memory_monitor:VitalsMonitor", always),))
