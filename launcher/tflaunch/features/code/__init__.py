"""Copy the user's code to hosts."""

from tflaunch.feature import Feature

FEATURE = Feature(code=".user_code:find_code", problems=".code_rules:find_problems")
