"""Find hosts that a spec does not name: by DNS, from a list, or by a program."""
