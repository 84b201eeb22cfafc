"""Everything of tflaunch that runs on the hosts of a cluster: the agent, and help for training programs."""

LOG_NAME = "agent.log"
"""What goes wrong in an agent itself is written to this file in its directory."""

SOCKET_NAME = "agent.sock"
"""Where a supervisor that has lost its link finds the agent again, in the agent's directory."""

LOCK_NAME = "lock"
"""A file in the agent's directory that is locked as long as anything of the run may live on the host."""

CODE_NAME = "code"
"""The directory of the user's code, in the agent's directory."""

TASKS_NAME = "tasks"
"""The directory of the tasks' private scratch, in the agent's directory."""
