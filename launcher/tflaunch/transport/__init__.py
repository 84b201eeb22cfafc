"""Open a byte stream to a host's agent: on this machine, or through a command."""
