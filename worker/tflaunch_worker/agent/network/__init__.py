"""The network of tasks: their ports, who reaches them, and whom they reach."""
