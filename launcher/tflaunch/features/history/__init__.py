"""Record what tasks report and use over time, from the start on."""

from tflaunch.feature import ALWAYS, Feature, Watching

FEATURE = Feature(watchers=(Watching(".history_recorder:HistoryRecorder", ALWAYS),))
