"""Find hosts that a spec does not name: by DNS, from a list, by running a program, or from Slurm."""
