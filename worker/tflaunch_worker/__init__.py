"""The part of tflaunch on a cluster's hosts: the agent, and helpers for training.

Every module here but `training` and `examples` needs the standard library only, and runs on Python 3.8 or later.
"""

LOG_NAME = "agent.log"
"""File in the agent's directory to which the agent logs its own errors."""

SOCKET_NAME = "agent.sock"
"""Socket in the agent's directory through which a supervisor reconnects after losing its link."""

LOCK_NAME = "lock"
"""File in the agent's directory that stays locked while any process of the run may live on the host."""

CODE_NAME = "code"
"""Directory of the user's code, inside the agent's directory."""

FILES_NAME = "files"
"""Directory of cached files of users' code, inside tflaunch's home on the host."""

CHECKPOINTS_NAME = "checkpoints"
"""Directory of copies of checkpoints, inside the agent's directory."""

TASKS_NAME = "tasks"
"""Directory of the tasks' private scratch directories, inside the agent's directory."""

USAGE_ERROR = "usage error"
"""The kind of a failure by arguments that the program refuses, as argparse, click and absl report them."""

OUTPUT_SIGNATURE = "output "
"""Prefix of a failure's signature that is a digest of the last lines, used when they contain no traceback."""
