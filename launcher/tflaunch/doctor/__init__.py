"""Checks of a spec's hosts before a run."""
