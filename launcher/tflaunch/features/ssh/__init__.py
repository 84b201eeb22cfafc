"""Reach hosts over SSH."""

from __future__ import annotations

from tflaunch.feature import Feature

FEATURE = Feature(connectors={"ssh": "tflaunch.features.ssh.connectors:SshConnectors"})
