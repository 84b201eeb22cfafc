"""Commands in messages: each works when pasted into a shell."""

import ast
import json
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

import tflaunch
import tflaunch_worker
from support.documents import check_usage
from support.launch import Launch
from tflaunch.cli import main
from tflaunch.cli.arguments.unknown_options import ANSWERS
from tflaunch.clusterspec.model import Spec
from tflaunch.features.programs.program_rules import check_commands


def printed(pattern: str, text: str) -> str:
    found = re.search(pattern, text)
    assert found is not None, text
    return found[1]


def test_a_program_in_place_of_a_spec_is_run_by_the_command_that_is_proposed(launch: Launch) -> None:
    (launch.directory / "my train.py").write_text("print('trained')")
    refused = launch.run("up", "my train.py", code=2)
    ran = launch.paste(printed(r"try: (tflaunch run .*)", refused.stderr))
    assert (ran.returncode, ran.stdout.count("trained")) == (0, 2), ran.stderr


def test_a_directory_that_others_can_write_to_is_mended_as_is_proposed(launch: Launch) -> None:
    """With the path quoted for the shell."""
    assert launch.up(launch.shell("true")).returncode == 0
    launch.run_directory().chmod(0o777)
    refused = launch.run("events")
    assert refused.returncode != 0
    assert launch.paste(printed(r"(chmod go-w [^,\n]*)", refused.stderr)).returncode == 0
    launch.succeed("events")


def test_an_image_that_is_missing_in_the_spec_is_added_as_is_proposed(launch: Launch) -> None:
    """As an option of the same command, with an image name of the user's."""
    spec = launch.spec(cluster={"worker": 2}, command=["python", "train.py"])
    refused = launch.run("render", spec, "--to", "jobset")
    option = printed(r"(--set container\.image=)NAME", refused.stderr)
    assert launch.paste(f"tflaunch render {spec} --to jobset {option}registry/image:1").returncode == 0


COMMAND = re.compile(r"`(tflaunch [a-z-][^`]*)`|(?:try|next|example|with|run it|again|later): (tflaunch [^;\n]+)")


def messages(path: Path) -> Iterator[str]:
    """Yield the texts in a module that are no documentation; each value put into one becomes `1`."""
    tree = ast.parse(path.read_text())
    inside = {id(value) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for value in node.values}
    notes = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = (each.value if isinstance(each, ast.Constant) else "1" for each in node.values)
            yield "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and not {id(node)} & (inside | notes):
            yield node.value


def test_a_command_in_a_message_is_one() -> None:
    modules = [path for package in (tflaunch, tflaunch_worker) for path in Path(package.__path__[0]).rglob("*.py")]
    texts = (text for path in modules for text in messages(path))
    commands = {"".join(command) for text in texts for command in COMMAND.findall(text)}
    assert len(commands) > 40
    wrong = {}
    for command in commands:
        try:
            check_usage(command.removesuffix("."))
        except (click.UsageError, ValueError, AssertionError) as error:
            wrong[command] = str(error)
    assert wrong == {}


SHELL = {
    "false | cat": 1,
    "false; true": 1,
    "A=3 env | grep -q A=3": 0,
    "source ./sourced && exit $N": 4,
    "ulimit -n 64 && exit 5": 5,
    "cat a/*.txt": 0,
    "sh script.sh > log": 6,
    "echo 'two  words' | grep -q 'two  words'": 0,
}
"""Commands for a shell, and the exit code that is the failure's."""


@pytest.mark.parametrize("command", SHELL)
def test_a_command_for_a_shell_fails_as_is_proposed(command: str, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a/1.txt").write_text("x\n")
    (tmp_path / "sourced").write_text("N=4\n")
    (tmp_path / "script.sh").write_text("exit 6\n")
    spec = Spec.model_validate({"cluster": {"worker": 1}, "command": command})
    (problem,) = check_commands(spec)
    proposed, _ = json.JSONDecoder().raw_decode(problem.hint.partition("write ")[2])
    words = [*proposed] if isinstance(proposed, list) else ["sh", "-c", proposed]
    assert subprocess.run(words, cwd=tmp_path, check=False, stdout=subprocess.DEVNULL).returncode == SHELL[command]
    followed = Spec.model_validate({"cluster": {"worker": 1}, "command": proposed})
    assert [each.sentence() for each in check_commands(followed) if not command.startswith("exit")] == []


def test_an_option_of_another_tool_is_answered_with_what_is_accepted() -> None:
    for (verb, option), answer in ANSWERS.items():
        command = main.tflaunch.get_command(click.Context(main.tflaunch), verb)
        options = {name for param in command.params for name in (*param.opts, *param.secondary_opts)}
        assert option not in options, verb
        assert {*re.findall("`(-[^` ]*)", answer)} <= options, (verb, option)


def test_what_other_tools_take_is_taken(launch: Launch) -> None:
    """`up -f`, `check -f`, `ls -a`, `wait --timeout` and `kill -9`, in the life of one run."""
    spec = launch.shell("echo up; exec sleep 1000", strategy="none", restart={"max": 0})
    launch.succeed("check", "-f", spec)
    launch.detach("-f", spec)
    assert launch.run("ls", "-a").stdout.count("running") == 1
    waited = launch.run("wait", "--timeout", "10ms")
    assert (waited.returncode, "has not ended within 10 ms, and goes on" in waited.stderr) == (124, True)
    launch.run("kill", "-9", "worker:1")
    assert launch.run("wait", "--timeout", "1h").returncode == 128 + signal.SIGKILL
    launch.succeed("prune", "--force")
