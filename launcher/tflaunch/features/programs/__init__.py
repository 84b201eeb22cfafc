"""Read the programs of tasks, without running them, and warn of what will not work."""

from tflaunch.feature import Feature

FEATURE = Feature(problems=".program_rules:find_problems")
