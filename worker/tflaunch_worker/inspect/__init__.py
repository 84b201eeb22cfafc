"""Inspect this host: the tasks' resource usage, the host's capabilities, and its TensorFlow."""
