"""`help`, `completion`, and suggestions for command names that other tools use."""

import difflib
import re
import shlex
from collections.abc import Collection
from importlib import resources

import click
from click.shell_completion import get_completion_class

_FOREIGN = {
    "`tflaunch down` stops a run, `tflaunch prune` deletes ended ones": "rm remove del delete destroy",
    "`tflaunch kill -s STOP TASK` stops a task, `-s CONT` continues it": "pause unpause suspend hold release",
    "ps": "status top show describe info get inspect stat stats sstat scontrol", "ls": "list runs history jobs sacct",
    "run": "srun torchrun mpirun mpiexec horovodrun accelerate deepspeed", "fetch": "download cp copy pull scp rsync",
    "up": "start launch submit apply create train deploy sbatch qsub", "web": "dashboard ui gui browse open page",
    "`tflaunch down` stops a run with all its tasks, `tflaunch kill TASK` signals one":
        "stop end cancel terminate quit abort halt scancel qdel",
    "diff": "compare", "debug": "pdb breakpoint debugger debugpy vscode",
    "`tflaunch bench` measures how a training scales; \"cluster\" in a spec has the number of workers": "scale",
    "`tflaunch up` runs the code as it is, and \"sync\" in a spec copies it to other hosts": "build push sbcast",
    "bench": "benchmark scaling speed", "plan": "config dry-run dryrun preview", "queue": "squeue sprio qstat waiting",
    "prune": "clean cleanup clear purge gc", "profile": "prof trace flamegraph perf", "explain": "diagnose why blame",
    "check": "validate lint verify test", "help": "doc docs man manual usage", "rerun": "retry redo repeat again clone",
    "stacks": "hang dump stack py-spy", "up --matrix": "sweep grid", "doctor": "sinfo preflight", "events": "journal",
    "exec": "shell sh bash ssh rsh login", "attach": "follow watch sattach", "logs": "log", "up --resume": "resume",
    "--version": "version", "logs -f": "tail", "restart": "rollout", "up --on slurm": "salloc",
}  # fmt: skip
_SHELLS = ("bash", "zsh", "fish")
MEANINGS = {verb: meant for meant, verbs in _FOREIGN.items() for verb in verbs.split()}
"""Verbs of other tools, and what does their work here: a verb, or a sentence without its full stop."""

_QUOTED_VERB = re.compile(r"`(?:tflaunch )?([a-z]+)")
_SIMILAR = 0.7  # at 0.6, `images` means `page`, and `clone` means `scale`
_NEVER_GUESSED = {"up", "run", "rerun", "restart", "down", "kill", "prune"}
"""Verbs that start, end or delete something, to which no misspelled word may lead."""


@click.command("help")
@click.argument("command", required=False)
@click.option("--all", "with_more", is_flag=True, help="List all commands.")
@click.option("--agent", "on_one_page", is_flag=True, help="Print one page for scripts and coding assistants.")
@click.pass_context
def help_(context: click.Context, command: str | None, with_more: bool, on_one_page: bool) -> None:
    """Show how COMMAND is used, or which commands there are.

    \b
    Example:
      tflaunch help up
    """
    if on_one_page:
        click.echo(resources.files(__package__).joinpath("SKILL.md").read_text("utf-8"), nl=False)
        return
    parent = context.parent
    assert parent is not None
    assert isinstance(parent.command, click.Group)
    if command is None:
        parent.obj = with_more
        click.echo(parent.get_help())
        return
    _, found, _ = parent.command.resolve_command(parent, [command])
    assert found is not None
    with click.Context(found, parent=parent, info_name=command) as inner:
        click.echo(found.get_help(inner))


@click.command()
@click.argument("shell", type=click.Choice(_SHELLS), metavar="bash|zsh|fish")
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print a script for SHELL that completes commands, options, runs and tasks.

    \b
    Example:
      eval "$(tflaunch completion bash)"
      tflaunch completion fish > ~/.config/fish/completions/tflaunch.fish
    """
    kind, parent = get_completion_class(shell), context.parent
    assert kind is not None
    assert parent is not None
    click.echo(kind(parent.command, {}, "tflaunch", "_TFLAUNCH_COMPLETE").source())


def no_such_command(name: str, known: Collection[str]) -> click.UsageError:
    """Return the error for an unknown command, with the most likely intended one."""
    # What is meant may belong to a feature that is missing here.
    meanings = {verb: verb for verb in known} | {
        verb: meant for verb, meant in MEANINGS.items() if _is_here(meant, known)
    }
    if name.endswith(".py"):
        return click.UsageError(f"No such command {name!r}; to run it: tflaunch run -n 2 python {shlex.quote(name)}")
    near = difflib.get_close_matches(name.lower(), meanings, n=1, cutoff=_SIMILAR)
    meant = meanings[near[0]] if near else ""
    if near != [name.lower()] and ("`" in meant or meant.partition(" ")[0] in _NEVER_GUESSED):
        meant = ""
    remedy = f"did you mean `tflaunch {meant}`?" if meant else "`tflaunch --help` lists the commands"
    return click.UsageError(f"No such command {name!r}; {meant if '`' in meant else remedy}")


def _is_here(meant: str, known: Collection[str]) -> bool:
    """Return whether the commands of a suggestion exist."""
    named = _QUOTED_VERB.findall(meant) or meant.split()[:1]
    return all(verb in known or verb.startswith("-") for verb in named)
