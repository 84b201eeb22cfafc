"""The user's code, as it comes to this host."""
