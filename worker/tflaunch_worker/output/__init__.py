"""What a task writes, until the supervisor has it."""
