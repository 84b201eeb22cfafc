"""Fork tasks from processes that have imported their modules, also across runs."""

from tflaunch_worker.feature import Feature

FEATURE = Feature(
    "tflaunch_worker.features.preload.pool:ZygotePool",
    calls=("look_for_warm",),
    moments=("start_task", "expect_task"),
    guards="tflaunch_worker.features.preload.warm_client:request_guard",
)
