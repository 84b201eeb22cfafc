"""Prepare a host for tasks, once for each content."""

from tflaunch_worker.feature import Feature

FEATURE = Feature("tflaunch_worker.features.setup.setups:Setups", calls=("set_up",))
