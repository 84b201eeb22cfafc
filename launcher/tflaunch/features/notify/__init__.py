"""Tell somebody how a run has ended."""

from tflaunch.feature import Feature, Watching

FEATURE = Feature(
    fields=("notify",),
    watchers=(
        Watching(
            "tflaunch.features.notify.notifier:Notifier",
            lambda supervision: supervision.job.original.notify is not None,
        ),
    ),
)
