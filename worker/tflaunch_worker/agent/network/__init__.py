"""The network of tasks: ports, the fence around them, and what tasks reach."""
