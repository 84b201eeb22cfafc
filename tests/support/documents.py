"""Commands and their output in documents: read from fenced blocks, run and compared.

Every ``console`` and ``sh`` block is run, unless a comment on the line above says why not:

    <!-- not run: it needs a cluster of Slurm -->
    <!-- file: NAME -->        the block, of any language, is the content of this file
    <!-- first: COMMAND -->    what the block needs and its reader has, such as a spec
"""

import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import click

from support.launch import Launch
from support.specs import REPOSITORY
from tflaunch.cli.main import tflaunch

_FENCE = re.compile(r"^(?:<!-- (?P<mark>[^\n]*) -->\n)?```(?P<kind>\w+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"(?<!`)`(tflaunch [^`]+)`(?!`)")
_ALL = "…"
_NOT_FOUND = 127
_VARYING = (
    (re.compile(r"-\d{8}-\d{6}-[0-9a-f]{4}"), "-RUN"),
    (re.compile(r"\b(?:\d+[dhm])*\d+(?:\.\d+)? ?(?:ms|s|min|m|h|d)\b"), "TIME"),
    (re.compile(r"(localhost|\d+\.\d+\.\d+\.\d+):\d+"), r"\1:PORT"),
    (re.compile(r"/\S*/runs/"), "/runs/"),
    (re.compile(r" +"), " "),
)
"""What differs between two runs of a command, and what replaces it before two outputs are compared."""
_PLACEHOLDERS = {"COMMAND": "up", "N": "1", "ENGINE": "slurm", "SHELL": "bash", "SIGNAL": "TERM", "PORT": "1"}

Shell = Callable[[str], tuple[int, str]]
"""Runs a command, and returns its exit code and what it has written, to stdout and to stderr."""


class Block(NamedTuple):
    page: str
    line: int
    kind: str
    text: str
    mark: str
    """What the comment above it says, "" without one."""

    @property
    def is_run(self) -> bool:
        return self.kind in ("console", "sh") and not self.mark.startswith(("not run:", "file:"))

    @property
    def file(self) -> str:
        """The name of the file that it is, "" if it is none."""
        return self.mark.removeprefix("file: ") if self.mark.startswith("file: ") else ""

    def commands(self) -> Iterator[tuple[str, list[str]]]:
        """Yield each command, and the lines that it prints according to the block."""
        if self.kind == "sh":
            for line in self.text.replace("\\\n", "").splitlines():
                if line.strip():
                    yield line, [_ALL]
            return
        command, output = "", list[str]()
        for line in self.text.splitlines():
            if line.startswith("$ "):
                if command:
                    yield command, output
                command, output = line[2:], []
            else:
                output.append(line)
        yield command, output


def pages() -> list[Path]:
    """Return the documents that show commands."""
    return [
        path
        for place in ("", "docs/", "docs/example_project/", "skills/*/")
        for path in REPOSITORY.glob(f"{place}*.md")
    ]


def blocks(page: Path) -> list[Block]:
    text, name = page.read_text(), str(page.relative_to(REPOSITORY))
    return [
        Block(name, text.count("\n", 0, found.start()) + 1, found["kind"], found["text"], found["mark"] or "")
        for found in _FENCE.finditer(text)
    ]


def shell_of(launch: Launch) -> Shell:
    """Return what runs commands in a directory, and in its environment."""

    def shell(command: str) -> tuple[int, str]:
        ended = launch.paste(f"exec 2>&1\n{command}")
        return ended.returncode, ended.stdout

    return shell


def run_block(block: Block, write: Callable[[str, str], None], shell: Shell) -> None:
    """Write a block's file, or run its commands and compare what they print.

    Raises:
        AssertionError: a command prints something else.
    """
    if block.file:
        write(block.file, block.text)
    if not block.is_run:
        return
    if block.mark.startswith("first: "):
        code, output = shell(block.mark.removeprefix("first: "))
        assert code == 0, output
    for command, expected in block.commands():
        code, output = shell(command)
        wrong = difference(expected, output.splitlines())
        if code == _NOT_FOUND or (code and block.kind == "sh"):
            wrong = f"exit code {code}"
        assert not wrong, f"{block.page}:{block.line}: $ {command}\n{wrong}\nit printed:\n{output}"


def difference(expected: list[str], found: list[str]) -> str:
    """Return how an output differs from the expected one, "" if it does not.

    Times, ports, paths and numbers of runs may differ, and the order of lines, as tasks write at the same time. An
    ellipsis matches anything in a line, or on a line of its own for any lines.
    """
    left = [_plain(line) for line in found if line.strip()]
    missing = []
    for line in expected:
        if not line.strip() or line.strip() == _ALL:
            continue
        pattern = ".*".join(map(re.escape, _plain(line).split(_ALL)))
        match = next((other for other in left if re.fullmatch(pattern, other)), None)
        if match is None:
            missing.append(f"missing: {line}")
        else:
            left.remove(match)
    is_open = any(line.strip() == _ALL for line in expected)
    return "\n".join(missing + ([] if is_open else [f"not expected: {line}" for line in left]))


def _plain(line: str) -> str:
    for pattern, replacement in _VARYING:
        line = pattern.sub(replacement, line)
    return line.strip()


def shown_commands(page: Path) -> Iterator[str]:
    """Yield each command line of tflaunch that a page shows, in a block or in a line of text."""
    found = blocks(page)
    for block in found:
        if block.kind in ("console", "sh"):
            yield from (command for command, _ in block.commands() if "tflaunch " in command)
    lines = re.findall(r"^ {4}(tflaunch [^\n]*)$", page.read_text(), re.MULTILINE)
    yield from (line for line in lines if not re.search(r"\[|\S\|", line))  # else it is the form of a command
    yield from _INLINE.findall(_FENCE.sub("", page.read_text()).replace("\n", " "))


def check_usage(line: str) -> None:
    """Check that the tflaunch commands in a line of a shell have such options and arguments.

    Missing arguments at the end are allowed: a text may name a command with one of its options only.

    Raises:
        click.UsageError: there is no such command or option, or an argument too much.
    """
    for words in _commands_in(line):
        if words in (["--version"], ["--help"]):
            continue
        with click.Context(tflaunch, info_name="tflaunch", **tflaunch.context_settings) as context:
            name, command, arguments = tflaunch.resolve_command(context, words)
            assert command is not None
            try:
                command.make_context(name, arguments, parent=context)
            except (click.exceptions.Exit, click.MissingParameter):
                pass
            except click.BadOptionUsage as error:
                if error.option_name != words[-1]:
                    raise
            except click.UsageError as error:
                if not error.message.startswith("Missing COMMAND"):  # of `run`, which says it in its own words
                    raise


def _commands_in(line: str) -> Iterator[list[str]]:
    """Yield the arguments of each tflaunch command in a line of a shell."""
    line = line.replace('"$(', " ( ").replace(')"', " ) ").replace("[--", "--")
    tokens = shlex.shlex(re.sub(r"\[(\w+)\]", r"\1", line), posix=True, punctuation_chars="|&;<>()")
    tokens.whitespace_split = True
    words: list[str] | None = None
    for token in tokens:
        if words is None and token == "tflaunch":
            words = []
        elif words is not None and set(token) <= set("|&;<>()"):
            yield words
            words = None
        elif words is not None and token.strip(".…[]"):
            bare = token.rstrip("]")
            words.append(_PLACEHOLDERS.get(bare, bare))
    if words:
        yield words
