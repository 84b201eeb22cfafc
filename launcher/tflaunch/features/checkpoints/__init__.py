"""Copy checkpoints while tasks train, and start each attempt with the newest."""

from tflaunch.feature import Feature, Watching

FEATURE = Feature(
    fields=("checkpoints",),
    problems="tflaunch.features.checkpoints.checkpoint_rules:find_problems",
    watchers=(
        Watching(
            "tflaunch.features.checkpoints.checkpoint_keeper:CheckpointKeeper", "checkpoints", prepares="checkpoint"
        ),
    ),
)
