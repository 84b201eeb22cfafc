"""Reach containers, and hosts of engines, through a command such as `docker exec`."""

from tflaunch.feature import Feature

FEATURE = Feature(connectors={"command": ".command_link:CommandConnectors"})
