"""Real training programs, one per strategy, which show tflaunch and test it."""
