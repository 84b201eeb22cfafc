"""Features of agents: folders that can be deleted (see `tflaunch_worker.feature`)."""
