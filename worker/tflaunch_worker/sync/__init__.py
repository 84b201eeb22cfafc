"""Receive the user's code on this host."""
