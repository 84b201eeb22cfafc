"""Receive the user's code."""

from __future__ import annotations

from tflaunch_worker.rooms import Room

ROOM = Room("tflaunch_worker.features.code.files:Offer", calls=("offer_files", "write_file", "remove_code"))
