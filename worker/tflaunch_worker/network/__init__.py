"""Ports of tasks, who listens on them, and whether hosts find and reach each other."""
