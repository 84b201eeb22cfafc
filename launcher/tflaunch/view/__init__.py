"""What a terminal shows: lines of tasks, and how the run stands."""
