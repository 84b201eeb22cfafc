"""Predict when memory will be full, and find out whether a task was killed because it was."""

from tflaunch.feature import ALWAYS, Feature, Watching

FEATURE = Feature(watchers=(Watching(".memory_growth:VitalsMonitor", ALWAYS),))
