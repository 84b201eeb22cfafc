"""Find hosts by DNS, in files and by programs."""

from __future__ import annotations

from tflaunch.feature import Feature

FEATURE = Feature(
    discover={
        "dns": "tflaunch.features.discovery.dns:Dns",
        "file": "tflaunch.features.discovery.listed:File",
        "exec": "tflaunch.features.discovery.listed:Exec",
    }
)
