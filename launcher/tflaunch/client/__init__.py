"""Observe and control runs from processes other than their supervisor."""
