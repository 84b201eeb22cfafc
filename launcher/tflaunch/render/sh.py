"""Render a plan as a bash script: all tasks on this machine, with the plan's TF_CONFIG."""

from __future__ import annotations

from tflaunch.clusterspec.model import Container
from tflaunch.plan.model import Plan
from tflaunch.render import bash

_HEAD = """\
Made by `tflaunch render --to sh`: runs the tasks of {name} on this machine, without restarts.
Exit code: 0, or that of the first task that failed. INT, TERM and HUP end all tasks.
"""


def render(plan: Plan, directory: str, server_program: str, container: Container) -> str:
    """Return the text of a bash script, which needs setsid of util-linux and env of coreutils 8.28."""
    head = "#!/usr/bin/env bash\n" + bash.comment(_HEAD.format(name=plan.name))
    return bash.script(plan, head, lambda _: ())
