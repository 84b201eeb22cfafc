"""Use Slurm through its own commands."""
