"""Everything of tflaunch that runs on the hosts of a cluster: the agent, and help for training programs."""
