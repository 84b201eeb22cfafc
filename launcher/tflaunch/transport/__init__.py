"""Open a byte stream to a host's agent: locally, through a command, or over SSH."""
