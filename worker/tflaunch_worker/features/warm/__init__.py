"""Show and end the warm servers of a host."""

from __future__ import annotations

from tflaunch_worker.rooms import Room

ROOM = Room("tflaunch_worker.features.warm.warm_servers:WarmServers", calls=("look_for_warm",))
