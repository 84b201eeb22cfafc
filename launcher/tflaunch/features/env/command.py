"""`env`: print shell exports to run one task by hand."""

import os
import re
import shlex
from pathlib import Path

import click

from tflaunch.cli.arguments.spec import read_file, set_option, source_name, spec_argument, warn
from tflaunch.discovery import prepare
from tflaunch.errors import EXIT_USAGE, Problem, TflaunchError
from tflaunch.features.secret_names import secret_in_shell
from tflaunch.plan import placeholders, task_env
from tflaunch.plan.model import Plan, TaskPlan
from tflaunch_worker.inspect import interpreter

_BY_HAND = "-by-hand"  # ends the name of a run whose tasks are started by hand
_SHELL_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_OF_SHELLS = (
    r"_|BASH.*|CDPATH|COMP_.*|COPROC|DIRSTACK|E?[UG]ID|ENV|EPOCH.*|ERRNO|FCEDIT|FIGNORE|FUNCNAME|FUNCNEST|GLOBIGNORE|GROUPS"
    r"|HIST.*|IFS|IGNOREEOF|KEYTIMEOUT|LINENO|MAIL.*|MAPFILE|(READ)?NULLCMD|OLDPWD|OPT(ARG|ERR|IND)|PIPESTATUS|POSIX.*|PPID"
    r"|PROMPT.*|PS[0-9]|PWD|RANDOM|READLINE_.*|REPLY|RPROMPT[0-9]?|RPS[0-9]|SECONDS|SHELLOPTS|SHLVL|SRANDOM|TIMEFORMAT|TMOUT"
    r"|TRY_BLOCK_.*|USERNAME|WATCH.*|ZDOTDIR|ZSH_.*|aliases|argv|cdpath|commands|fignore|fpath|functions|histchars|mailpath"
    r"|manpath|module_path|modules|options|parameters|path|pipestatus|prompt|psvar|signals|status|watch"
)
"""Variables that have a meaning for bash or zsh, or that they do not allow to be set."""


@click.command()
@spec_argument
@click.argument("task")
@set_option
def env(spec: Path, task: str, settings: tuple[str, ...]) -> None:
    """Print shell commands to run TASK's command by hand, for example in a debugger.

    The spec should give every task a port: one that is chosen at the start cannot be known here.

    \b
    Example:
      eval "$(tflaunch env cluster.json worker:1)" && python train.py
    """
    file = read_file(spec)
    made, warnings = prepare.plan_spec(file, settings)
    warn(spec, warnings)
    names = [process.task for process in made.processes()]
    if task not in names:
        raise TflaunchError(
            f"{source_name(spec)}: there is no task {task!r}; the tasks are {', '.join(names)}", EXIT_USAGE
        )
    unknown = [process.task for process in made.tasks if process.address and process.address.port is None]
    if unknown:
        hint = 'give it in the spec, for example "localhost:12345"'
        warn(spec, [Problem("warning", unknown[0], "its port is chosen only at the start", hint)])
    made = placeholders.shown(made, made.name + _BY_HAND)
    click.echo(shell_exports(made, _settled(made, made.find(task))))


def _settled(plan: Plan, task: TaskPlan) -> TaskPlan:
    """Decide for a local task, as its agent would, whether it has tf_keras."""
    if not plan.host(task.host).is_local or task.env.get(interpreter.CHOICE) != interpreter.LEFT_TO_THE_HOST:
        return task
    is_legacy, _ = interpreter.legacy_keras(list(task.argv), {**os.environ, **task.env})
    return task._replace(env={**task.env, "TF_USE_LEGACY_KERAS": "1" if is_legacy else "0"})


def shell_exports(plan: Plan, task: TaskPlan) -> str:
    """Return shell commands that prepare a shell to run the task's command by hand."""
    env = task_env.for_attempt(task.env, plan.name + _BY_HAND, 0)
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
