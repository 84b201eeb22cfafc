"""A task while it lives: its processes, its silence, how far it says it is, and why the kernel ended it."""
