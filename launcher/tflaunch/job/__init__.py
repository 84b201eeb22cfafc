"""The job, and what becomes of it: pure values and functions, of which `supervisor.step` decides."""
