"""Find hosts by DNS, in files and by programs."""

from tflaunch.feature import Feature

FEATURE = Feature(
    discover={
        "dns": "tflaunch.features.discovery.engines:Dns",
        "file": "tflaunch.features.discovery.engines:File",
        "exec": "tflaunch.features.discovery.engines:Exec",
    }
)
