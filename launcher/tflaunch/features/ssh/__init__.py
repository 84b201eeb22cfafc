"""Reach hosts over SSH."""

from tflaunch.feature import Feature

FEATURE = Feature(connectors={"ssh": ".connectors:SshConnectors"})
