"""A running task: its processes, output, stalls and progress, and why the kernel killed it."""
