"""Sample the stacks of tasks that train."""

from tflaunch_worker.feature import Feature

FEATURE = Feature("tflaunch_worker.features.profile.profiles:HostProfiles", calls=("profile_task",))
