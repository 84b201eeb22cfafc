"""Copy the user's code to hosts."""

from __future__ import annotations

from tflaunch.feature import Feature

FEATURE = Feature(
    code="tflaunch.features.code.selected_files:find_code",
    problems="tflaunch.features.code.code_rules:find_problems",
)
