"""Shell commands after which the command of a task can be run by hand. Pure."""

from __future__ import annotations

import re
import shlex

from tflaunch.plan import task_env
from tflaunch.plan.model import Plan, TaskPlan
from tflaunch.plan.serialize import secret_in_shell

_SHELL_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_OF_SHELLS = (
    r"_|BASH.*|CDPATH|COMP_.*|COPROC|DIRSTACK|E?[UG]ID|ENV|EPOCH.*|ERRNO|FCEDIT|FIGNORE|FUNCNAME|FUNCNEST|GLOBIGNORE|GROUPS"
    r"|HIST.*|IFS|IGNOREEOF|KEYTIMEOUT|LINENO|MAIL.*|MAPFILE|(READ)?NULLCMD|OLDPWD|OPT(ARG|ERR|IND)|PIPESTATUS|POSIX.*|PPID"
    r"|PROMPT.*|PS[0-9]|PWD|RANDOM|READLINE_.*|REPLY|RPROMPT[0-9]?|RPS[0-9]|SECONDS|SHELLOPTS|SHLVL|SRANDOM|TIMEFORMAT|TMOUT"
    r"|TRY_BLOCK_.*|USERNAME|WATCH.*|ZDOTDIR|ZSH_.*|aliases|argv|cdpath|commands|fignore|fpath|functions|histchars|mailpath"
    r"|manpath|module_path|modules|options|parameters|path|pipestatus|prompt|psvar|signals|status|watch"
)
"""Variables that have a meaning for bash or zsh, or that they do not allow to be set."""


def run_by_hand(plan: Plan) -> str:
    """Return the name of a run whose tasks are started by hand."""
    return f"{plan.name}-by-hand"


def shell_exports(plan: Plan, task: TaskPlan) -> str:
    """Return shell commands that prepare a shell to run the task's command by hand."""
    env = task_env.for_attempt(task.env, run_by_hand(plan), 0)
    lines = [f"export {name}={secret_in_shell(source)}" for name, source in sorted(plan.secrets.items())]
    lines += [f"unset {name}" for name in task.unset]  # some of the secrets come from these
    for name in task_env.BY_AGENTS:
        env.pop(name, None)
    for name, value in sorted(env.items()):
        if _is_plain_name(name):
            lines.append(f"export {name}={shlex.quote(value)}")
    lines.append('export TFLAUNCH_TASK_DIR="$(mktemp -d)"')
    lines.append(f"cd -- {shlex.quote(task.workdir)}")
    lines.append('[ ! -t 2 ] || echo "tflaunch: this shell is in $PWD now" >&2')  # for terminals, not scripts
    rest = [f"{name}={value}" for name, value in sorted(env.items()) if not _is_plain_name(name)]
    if rest:
        lines.append("# A shell cannot hold all variables of the task, so `env` sets the rest:")
    command = [*(("env", "--", *rest) if rest else ()), *task.argv]
    return "\n".join([*lines, *(f"# {line}" for line in shlex.join(command).split("\n"))])


def _is_plain_name(name: str) -> bool:
    """Whether a shell can export a variable that has no meaning for the shell itself."""
    return re.fullmatch(_SHELL_NAME, name) is not None and re.fullmatch(_OF_SHELLS, name) is None
