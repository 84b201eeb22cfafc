"""Run commands on the hosts of tasks."""

from tflaunch.feature import Feature, Verb, Watching

FEATURE = Feature(
    verbs={"exec": Verb(".command:exec_", "Act on runs", "Run a command, or a shell, on the host of a task.")},
    watchers=(Watching(".command_relay:CommandRelay", requests=("exec", "exec_tell")),),
)
