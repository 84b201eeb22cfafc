"""The agent: starts, watches and stops the tasks of one run on one host."""
