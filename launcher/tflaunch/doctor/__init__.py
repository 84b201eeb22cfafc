"""Check a spec's hosts before a run."""
