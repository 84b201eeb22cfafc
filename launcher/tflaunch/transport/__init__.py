"""How a byte stream to a host's agent is opened: locally, through a command, over SSH."""
