# ruff: noqa: INP001 (a script, run on purpose)
"""The page of all commands, made from what the commands say of themselves: writes docs/commands.md.

python docs/commands.py
"""

from __future__ import annotations

import inspect
import textwrap
from pathlib import Path

import click

from tflaunch.cli.arguments.launch import feature_options
from tflaunch.cli.main import tflaunch

_WIDTH = 100
_GLUE = "\0"  # holds an option and its value together

PAGE = Path(__file__).with_name("commands.md")

HEAD = """\
# Commands

Made by `python docs/commands.py` from what `tflaunch COMMAND --help` prints. `tflaunch` alone says what could be done
in this directory, `tflaunch --help` lists the commands that most people need, `tflaunch help --all` all of them, and
`tflaunch help --agent` prints one page for scripts and assistants.

Results go to stdout, errors and progress to stderr. RUN is the name of a run or of its job, or a prefix of one. If
several runs match, the live one is used, or the newest if none is live; if several are live, name one. Without RUN, all
runs match.

| exit code of `up`, `run`, `attach` and `wait` | meaning |
|---|---|
| 0 | the job succeeded: all tasks, or the chief of a parameter_server job, exited with 0 |
| 1 to 123 | the culprit's own exit code; 1 also for a program that went to [the background](troubleshooting.md) |
| 128+N | the culprit was killed by signal N, or tflaunch [got it](supervision.md#signals) |
| 2 | the spec or the usage is wrong, and nothing was started; or the culprit's own |
| 3 | a port is busy or a host cannot be reached, and nothing was started; or the culprit's own |
| 124 | a time limit, also that of `wait --timeout` |
| 125 | a host or tflaunch failed, or a task [may live on](supervision.md#ending-a-run) |
| 126, 127 | the command cannot be executed; it was not found |
| 130, 143 | Ctrl-C; TERM or `tflaunch down` |

![`tflaunch --help`](pictures/help.svg)
"""

ENGINES = """\
## Options of engines

They go with `--on`, or with a spec for the engine, in every command that has `[ENGINE OPTIONS]`. `ls` takes only those
that say where runs are: `--namespace` and `--context`.
"""

COMPLETION = """\
## Completion in a shell

Commands, options, runs and tasks are completed. In a shell that is running:

| shell | type |
|---|---|
| bash 4.4 or later | `eval "$(tflaunch completion bash)"` |
| zsh | `eval "$(tflaunch completion zsh)"`, after `autoload -Uz compinit && compinit` |
| fish | `tflaunch completion fish \\| source` |

For every new shell, put that line into `~/.bashrc`, behind `compinit` in `~/.zshrc`, or, for fish, write its output
to a file:

    tflaunch completion fish > ~/.config/fish/completions/tflaunch.fish
"""


def page() -> str:
    """Return the page."""
    context = click.Context(tflaunch)
    found = [(name, tflaunch.get_command(context, name)) for name in tflaunch.list_commands(context)]
    commands = {name: command for name, command in found if command is not None}
    index = [f"| [`{name}`](#tflaunch-{name}) | {command.short_help} |" for name, command in commands.items()]
    table = "\n".join(["| command | does |", "|---|---|", *index]) + "\n"
    sections = [_section(command) for command in commands.values()]
    return "\n".join([HEAD, table, *sections, ENGINES, _engine_options(commands["up"]), COMPLETION])


def _engine_options(up: click.Command) -> str:
    options = [option for option in up.params if isinstance(option, click.Option) and _is_of_engine(option)]
    return "\n".join(["| option | meaning |", "|---|---|", *map(_in_list, options)]) + "\n"


def _is_of_engine(option: click.Parameter) -> bool:
    return option.name in feature_options() and bool(feature_options()[option.name].engine)


def _section(command: click.Command) -> str:
    """Return what there is to know of a command."""
    parts = [f"## tflaunch {command.name}", _synopsis(command), *map(_paragraph, _paragraphs(command))]
    options = [
        _in_list(option)
        for option in command.params
        if isinstance(option, click.Option) and not option.hidden and not _is_of_engine(option)
    ]
    if any(map(_is_of_engine, command.params)):
        options.append("| ENGINE OPTIONS | [Those that go with `--on`](#options-of-engines). |")
    if options:
        parts.append("\n".join(["| option | meaning |", "|---|---|", *options]))
    return "\n\n".join(parts) + "\n"


def _synopsis(command: click.Command) -> str:
    """Return how the command is written, on lines of their own what does not fit on the first."""
    start = f"tflaunch {command.name}"
    visible = [parameter for parameter in command.params if not getattr(parameter, "hidden", False)]
    ordered = sorted(visible, key=lambda parameter: isinstance(parameter, click.Argument))
    shown = ["[ENGINE OPTIONS]" if _is_of_engine(parameter) else _in_synopsis(parameter) for parameter in ordered]
    words = [word.replace(" ", _GLUE) for word in dict.fromkeys(shown)]
    indent = " " * (len(start) + 1)
    lines = textwrap.wrap(" ".join([start, *words]), _WIDTH, subsequent_indent=indent, break_on_hyphens=False)
    return _as_code("\n".join(lines).replace(_GLUE, " "))


def _paragraphs(command: click.Command) -> list[str]:
    return inspect.cleandoc(command.help or "").split("\n\n")


def _paragraph(text: str) -> str:
    """Return a paragraph; one that click prints as it stands, an example, becomes code under its heading."""
    if not text.startswith("\b\n"):
        return text
    heading, *lines = text.splitlines()[1:]
    return f"{heading}\n\n" + _as_code("\n".join(line.strip() for line in lines))


def _as_code(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())


def _in_synopsis(parameter: click.Parameter) -> str:
    if isinstance(parameter, click.Option):
        return (
            f"{_spelled(parameter)}" if parameter.required else f"[{_spelled(parameter)}]{'...' * parameter.multiple}"
        )
    if parameter.metavar:
        return parameter.metavar
    name = str(parameter.name).upper() + ("..." if parameter.nargs == -1 else "")
    dashes = "-- " if parameter.type is click.UNPROCESSED else ""
    return f"{dashes}{name}" if parameter.required else f"[{dashes}{name}]"


def _spelled(option: click.Option) -> str:
    """Return an option in its shortest spelling, with what it takes; of two that exclude each other the one to give."""
    names = option.secondary_opts if option.secondary_opts and option.default is True else option.opts
    return " ".join(filter(None, [min(names, key=len), _value(option)]))


def _in_list(option: click.Option) -> str:
    names = ", ".join(f"`{name}`" for name in [*option.opts, *option.secondary_opts])
    taken = _value(option).replace("|", "\\|")  # else it ends the cell
    value = f" `{taken}`" if taken else ""
    return f"| {names}{value} | {option.help} |"


def _value(option: click.Option) -> str:
    """Return the placeholder for an option's value, nothing for a flag."""
    if option.is_flag:
        return ""
    if isinstance(option.type, click.Choice):
        return "|".join(map(str, option.type.choices))
    return option.metavar or str(option.name).upper()


if __name__ == "__main__":
    PAGE.write_text(page())
