"""Reach hosts over SSH."""

from tflaunch.feature import Feature

FEATURE = Feature(connectors={"ssh": "tflaunch.features.ssh.connectors:SshConnectors"})
