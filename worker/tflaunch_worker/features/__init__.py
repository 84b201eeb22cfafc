"""Rooms: each package here is a feature of agents (see `tflaunch_worker.rooms`)."""
