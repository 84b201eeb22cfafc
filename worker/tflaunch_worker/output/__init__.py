"""Keep the output of tasks until the supervisor has it."""
