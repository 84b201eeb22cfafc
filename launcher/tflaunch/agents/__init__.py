"""The launcher's side of the protocol with each host's agent."""
