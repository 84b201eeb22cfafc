"""Modules for tasks: this directory is the last one in their PYTHONPATH, so every name here must be unmistakable."""
