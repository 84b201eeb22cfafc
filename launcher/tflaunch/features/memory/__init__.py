"""Predict when memory will be full, and find tasks that were killed because of it."""

from tflaunch.feature import ALWAYS, Feature, Watching

FEATURE = Feature(watchers=(Watching(".memory_growth:VitalsMonitor", ALWAYS),))
