"""Read tasks' programs, without running them, and warn of what will not work."""

from tflaunch.feature import Feature

FEATURE = Feature(problems=".program_rules:find_problems")
