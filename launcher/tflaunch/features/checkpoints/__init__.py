"""Copy checkpoints while tasks train, and start each attempt with the newest."""

from tflaunch.feature import Feature, Watching

FEATURE = Feature(
    fields=("checkpoints",),
    problems=".checkpoint_rules:find_problems",
    watchers=(Watching(".checkpoint_keeper:CheckpointKeeper", "checkpoints", prepares="checkpoint"),),
)
