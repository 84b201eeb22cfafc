"""Copy the user's code to hosts."""

from tflaunch.feature import Feature

FEATURE = Feature(
    code="tflaunch.features.code.user_code:find_code", problems="tflaunch.features.code.code_rules:find_problems"
)
