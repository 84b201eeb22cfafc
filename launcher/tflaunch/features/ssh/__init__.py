"""Reach hosts over SSH."""

from __future__ import annotations

from tflaunch.rooms import Room

ROOM = Room(connectors={"ssh": "tflaunch.features.ssh.connectors:SshConnectors"})
