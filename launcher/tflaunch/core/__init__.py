"""The job and how it changes: pure values and functions."""
