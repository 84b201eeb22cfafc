"""How the process of a task comes to be: executed, or forked of one that has imported modules."""
