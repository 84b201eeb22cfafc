"""Give the tasks of a job on one host a network that no other process reaches."""

from tflaunch.feature import Feature

FEATURE = Feature(fields=("network: private",), problems=".network_rules:find_problems")
