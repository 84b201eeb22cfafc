"""Record what tasks report and use over time, from the start on."""

from __future__ import annotations

from tflaunch.rooms import Room, Watching, always

ROOM = Room(watchers=(Watching("tflaunch.features.history.history_recorder:HistoryRecorder", always),))
