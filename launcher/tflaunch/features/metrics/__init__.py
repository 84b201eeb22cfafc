"""Serve measurements to Prometheus."""

from tflaunch.feature import Feature, Option, Watching

FEATURE = Feature(
    options={
        "metrics_port": Option(
            "Serve metrics for Prometheus on this port of 127.0.0.1; 0 for any.",
            "PORT",
            read=".metrics:read_port",
            goes_with_resume=True,
        )
    },
    watchers=(Watching(".metrics:Metrics", "metrics_port"),),
)
