"""Inspect this host: what tasks use, what it can do, which TensorFlow it has."""
