"""Modules for tasks, last in their PYTHONPATH: every name must be unmistakable."""
