"""What agents do for features: each is a folder that can be deleted (`tflaunch_worker.feature`)."""
