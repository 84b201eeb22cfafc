"""Store a run on disk: its directory, its journal, and the tasks' logs."""
