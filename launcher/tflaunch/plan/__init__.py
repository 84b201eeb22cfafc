"""The plan of a job: command, environment and TF_CONFIG of each task."""
