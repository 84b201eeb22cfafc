"""The plan: one command, environment and TF_CONFIG per task."""
