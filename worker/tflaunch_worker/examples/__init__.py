"""Real training programs, one per strategy: they show tflaunch at work, and its tests train with them."""
