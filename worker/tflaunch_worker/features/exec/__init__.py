"""Run commands beside a task."""

from __future__ import annotations

from tflaunch_worker.rooms import Room

ROOM = Room("tflaunch_worker.features.exec.host_commands:HostCommands", calls=("run_command",))
