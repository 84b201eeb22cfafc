"""Show what `up` would do."""

from tflaunch.feature import Feature, Verb

FEATURE = Feature(verbs={"plan": Verb(".command:plan", "More", "Show what `up` would do.", output=".command:PLAN")})
