"""Receive the user's code."""

from __future__ import annotations

from tflaunch_worker.rooms import Room

ROOM = Room("tflaunch_worker.features.code.received_code:Offer", calls=("offer_files", "write_file", "remove_code"))
