"""Run jobs of Slurm, and on the nodes that Slurm has given."""

from __future__ import annotations

from tflaunch.rooms import Room

ROOM = Room()
