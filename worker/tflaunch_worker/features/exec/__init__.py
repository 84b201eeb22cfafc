"""Run commands beside a task."""

from tflaunch_worker.feature import Feature

FEATURE = Feature("tflaunch_worker.features.exec.host_commands:HostCommands", calls=("run_command",))
