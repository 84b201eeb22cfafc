"""The run directory on disk: the journal and the tasks' logs."""
