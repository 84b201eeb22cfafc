"""Terminal output for a run."""
