"""Prepare hosts with the user's own commands, once for each content."""

from tflaunch.feature import Feature, Watching

FEATURE = Feature(
    fields=("setup", "setup_files"),
    problems=".setup_rules:find_problems",
    watchers=(Watching(".host_setup:HostSetup", "has_setups", prepares="setup"),),
)
