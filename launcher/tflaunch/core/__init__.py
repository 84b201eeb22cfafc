"""The state of a job and its transitions, as pure values and functions."""
