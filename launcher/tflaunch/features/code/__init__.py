"""Copy the user's code to hosts."""

from __future__ import annotations

from tflaunch.rooms import Room

ROOM = Room(code="tflaunch.features.code.selected_files:find_code")
