"""The supervisor: the loop around the core, with clocks and processes."""
