"""Record what tasks report and use over time, from the start on."""

from tflaunch.feature import ALWAYS, Feature, Watching

FEATURE = Feature(watchers=(Watching("tflaunch.features.history.history_recorder:HistoryRecorder", ALWAYS),))
