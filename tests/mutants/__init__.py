"""Planted bugs: each is an edit of the real code that the simulator or a file of tests must find."""
