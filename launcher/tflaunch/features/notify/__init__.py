"""Notify the user of how a run has ended."""

from tflaunch.feature import Feature, Watching

FEATURE = Feature(fields=("notify",), watchers=(Watching(".notifier:Notifier", "notify"),))
