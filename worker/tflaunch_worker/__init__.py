"""Everything of tflaunch that runs on the hosts of a cluster: the agent, and help for training programs."""

LOG_NAME = "agent.log"
"""What goes wrong in an agent itself is written to this file in its directory."""
