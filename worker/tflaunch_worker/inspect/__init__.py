"""Inspect this host: usage of its tasks, its capabilities, and its TensorFlow."""
