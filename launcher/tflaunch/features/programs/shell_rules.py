"""Rules for commands in shell syntax: none runs in a shell unless it starts one."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Sequence

from tflaunch.clusterspec.model import Spec
from tflaunch.errors import Problem
from tflaunch.plan.task_rules import all_commands

_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_OPERATOR = re.compile(r"[0-9]?(>>?|<)(&[0-9])?|[0-9&]?>>?[^<>=&]+|\|\|?|&&?|;")
_EXPANSION = re.compile(r"\$([A-Za-z_]|\{[A-Za-z_][A-Za-z0-9_]*\}|\()|`.+`|~(/.*)?$")
_PATTERN = re.compile(r"(?=\S*[*?])(?=\S*[./])[^-\s]\S*")
_BUILTINS = ("source", ".", "cd", "export", "ulimit", "exec", "eval", "set", "unset", "pushd", "shopt", "umask")
_PYTHON = re.compile(r"(.*/)?python[\d.]*")
_NOTEBOOK = ".ipynb"
_LONGEST = 100  # characters of a command that is proposed


def check_commands(spec: Spec) -> Iterator[Problem]:
    """Check commands for shell syntax, which reaches a program literally."""
    for where, command in all_commands(spec):
        found = (rule(where, command) for rule in (_one_word, _notebook, _background, _tee, _syntax))
        yield from [problem for problem in found if problem is not None][:1]


def _one_word(where: str, command: Sequence[str]) -> Problem | None:
    program = command[0]
    if len(command) > 1 or not re.match(r"[^\s/]+\s+\S", program):
        return None
    message = f"{program!r} is one word, so it is the name of a program"
    return Problem.error(where, message, f"write {json.dumps(program.split(), ensure_ascii=False)}")


def _notebook(where: str, command: Sequence[str]) -> Problem | None:
    is_script = len(command) > 1 and _PYTHON.fullmatch(command[0])
    word = command[1] if is_script else command[0]
    if not word.endswith(_NOTEBOOK):
        return None
    made = word.removesuffix(_NOTEBOOK) + ".py"
    remedy = f"`jupyter nbconvert --to script {shlex.quote(word)}` writes {made!r}: run that"
    return Problem.error(where, f"{word!r} is a notebook, which Python cannot run", remedy)


def _background(where: str, command: Sequence[str]) -> Problem | None:
    if command[-1] != "&" and not re.fullmatch(r"[^&]+&", command[-1]):
        return None
    message = "'&' is shell syntax for a program in the background, and a task ends with its first process"
    return Problem.warning(where, message, "leave out '&', and nohup with it")


def _tee(where: str, command: Sequence[str]) -> Problem | None:
    if "|" not in command or (*command, "", "")[command.index("|") + 1] != "tee":
        return None
    message = "'|' is shell syntax, but no shell runs: the program gets it literally"
    own = shlex.join(command[: command.index("|")])
    return Problem.warning(
        where,
        message,
        f"write {json.dumps(own, ensure_ascii=False)}: tflaunch keeps the output, and `tflaunch logs` shows it",
    )


def _syntax(where: str, command: Sequence[str]) -> Problem | None:
    found = next((word for word, _ in _for_a_shell(command)), None)
    if found is None:
        return None
    message = f"{found!r} is shell syntax, but no shell runs: the program gets it literally"
    if found in _BUILTINS:
        message = f"{found!r} is a command of shells, but no shell runs"
    return Problem.warning(where, message, f"to run it in a shell, {_through_a_shell(command)}")


def _for_a_shell(command: Sequence[str]) -> Iterator[tuple[str, int]]:
    """Yield shell words and their indices; a script after `-c` is for another shell."""
    for index, word in enumerate(command):
        before = command[index - 1] if index else ""
        if before == "-c":
            continue
        is_program = not index and (_ASSIGNMENT.match(word) or word in _BUILTINS)
        is_pattern = index and not before.startswith("-") and "://" not in word and _PATTERN.fullmatch(word)
        is_end = index < len(command) - 1 and re.fullmatch(r"[^;]+;", word)
        is_syntax = index and (_OPERATOR.fullmatch(word) or _EXPANSION.search(word))
        if is_program or is_pattern or is_end or is_syntax:
            yield word, index


def _through_a_shell(command: Sequence[str]) -> str:
    """Return the remedy by which a shell runs a command and fails with it."""
    plain = {index for _, index in _for_a_shell(command)}
    script = " ".join(word if index in plain else shlex.quote(word) for index, word in enumerate(command))
    shell = ["bash" if {"|", "source"} & {*command} else "sh"]
    if "|" in command:  # else the exit code would be that of the last program
        shell += ["-o", "pipefail"]
    if any(word.endswith(";") for word, _ in _for_a_shell(command)):
        shell.append("-e")
    text = json.dumps([*shell, "-c", script], ensure_ascii=False)
    return f"write {text}" if len(text) <= _LONGEST else "put it into a script, and run that"
