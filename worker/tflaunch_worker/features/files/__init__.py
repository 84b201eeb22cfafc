"""List the files that tasks have written, and send them."""

from __future__ import annotations

from tflaunch_worker.rooms import Room

ROOM = Room("tflaunch_worker.features.files.listed_files:FileListing", calls=("list_files",))
