"""Hosts that a spec does not name: found by DNS, in a list, by a program or from Slurm."""
