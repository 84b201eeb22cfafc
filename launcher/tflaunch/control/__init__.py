"""The run's socket: its supervisor's end, and that of other terminals."""
