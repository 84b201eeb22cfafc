"""Ports of tasks, processes that listen on them, and whether hosts can resolve and reach each other."""
