"""Runs as seen from another process than their supervisor."""
