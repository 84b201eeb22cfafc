"""Real training programs, one per strategy: they demonstrate tflaunch, and its tests train with them."""
