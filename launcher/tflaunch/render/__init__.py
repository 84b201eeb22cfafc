"""A plan in the words of other engines: each module writes for one of them, and nothing is started."""
