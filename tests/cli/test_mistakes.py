"""Mistakes that people make (mistakes.yaml), and bad specs that are rarer, or hostile.

Each answer names place, cause and remedy, and its commands work. A bad spec is refused with exit code 2, one sentence
per problem, and nothing started.
"""

import json
import os
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.documents import check_usage
from support.specs import SMALLEST_LOCAL, tflaunch
from tflaunch.cli.main import run_command_line

CASES: list[dict[str, Any]] = yaml.safe_load(Path(__file__).with_name("mistakes.yaml").read_text())
_PRINTED = re.compile(r"`(tflaunch [^`]+)`|(?:try|next|example|run it with|after `--`): (tflaunch .+)")


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command in this process; return its exit code, output and errors."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TFLAUNCH_HOME", str(tmp_path / "home"))

    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["tflaunch", *map(str, arguments)])
        code = run_command_line()
        return code, *capsys.readouterr()

    return call


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["mistake"])
def test_the_answer_names_place_cause_and_remedy(case: dict[str, Any], tmp_path: Path, run: Run) -> None:
    """In this process, unless tasks are started."""
    for name, text in case.get("files", {}).items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    arguments = shlex.split(case["run"])
    if case.get("is_started"):
        ended = tflaunch(*arguments, home=tmp_path / "home", cwd=tmp_path)
        code, answer = ended.returncode, ended.stdout + ended.stderr
    else:
        code, out, err = run(*arguments)
        answer = out + err
    answer = answer.replace(str(tmp_path), "DIR")
    assert code == case["code"], answer
    assert [part for part in ("place", "cause", "remedy") if case[part] not in answer] == [], answer
    assert "Traceback" not in answer or case["mistake"] == "a module that is missing", answer
    for command in _PRINTED.findall(answer):
        check_usage("".join(command))


def test_there_are_a_hundred_and_no_two_are_the_same() -> None:
    assert len(CASES) >= 100
    assert len({(case["run"], str(case.get("files"))) for case in CASES}) == len(CASES)
    assert len({case["mistake"] for case in CASES}) == len(CASES)


LIMIT = 4 * 1024 * 1024
DIGITS = "9" * 10_000


def loop(path: Path) -> None:
    """A symbolic link to itself."""
    path.symlink_to(path.name)


def forbidden(path: Path) -> None:
    """A file that its owner may not read."""
    path.write_text(json.dumps(SMALLEST_LOCAL))
    path.chmod(0)


def alias_bomb(levels: int) -> str:
    """YAML in which every list holds the previous one ten times."""
    return "a0: &a0 [1]\n" + "\n".join(f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 10)}]" for n in range(1, levels))


def merge_bomb(levels: int) -> str:
    """YAML in which every object merges the one inside it ten times."""
    inner = "&a0 {k: 1}"
    for n in range(1, levels):
        inner = f"&a{n} {{<<: [{inner}{f', *a{n - 1}' * 9}]}}"
    return f"bomb: {inner}"


GOOD = json.dumps(SMALLEST_LOCAL)
YAML = "cluster: {worker: 2}\ncommand: [python, train.py]\n"
BAD: dict[str, tuple[str, bytes | str | Callable[[Path], object], str]] = {
    "a link to itself": ("loop.json", loop, "cannot be read"),
    "unreadable": ("secret.json", forbidden, "Permission denied"),
    "huge and good": ("cluster.json", GOOD.ljust(LIMIT + 1), "larger than 4 MiB"),
    "binary": ("cluster.json", bytes(range(256)) * 10, "UTF-8"),
    "UTF-16": ("cluster.json", GOOD.encode("utf-16"), "is text in UTF-16; save it as UTF-8"),
    "no ending": ("cluster", GOOD, "has no extension, so its format is unknown"),
    "JSON: truncated": ("cluster.json", GOOD[:-3], "is not valid JSON: "),
    "JSON: NaN": ("cluster.json", '{"timeouts": {"grace": NaN}}', "NaN, which is not valid JSON"),
    "JSON: 10,000 digits": ("cluster.json", f'{{"cluster": {{"worker": {DIGITS}}}}}', "smaller number"),
    "JSON: 100,000 brackets": ("cluster.json", "[" * 100_000, "nested too deeply"),
    "JSON: 300,000 values": ("cluster.json", "[" + "0," * 300_000 + "0]", "more than 200000 values"),
    "JSON: a key twice": ("cluster.json", '{"cluster": {"worker": 1, "worker": 2}}', "'worker' twice"),
    "YAML: truncated": ("cluster.yaml", f"{YAML}roles: {{worker: {{gpus: [", "is not usable YAML"),
    "YAML: an object": ("cluster.yaml", f"{YAML}env: !!python/object/apply:os.mkdir [runs]", "object/apply:os.mkdir"),
    "YAML: a cycle": ("cluster.yaml", f"{YAML}env: &a\n  A: *a", "refers to itself"),
    "YAML: aliases of aliases": ("cluster.yaml", f"{YAML}{alias_bomb(12)}", "more than 200000 values"),
    "YAML: merged objects": ("cluster.yaml", f"{YAML}{merge_bomb(12)}", ""),
    "TOML: truncated": ("cluster.toml", "[cluster", "is not valid TOML"),
    "TOML: 100,000 dots": ("cluster.toml", f"{'.'.join('a' * 100_000)} = 1", "nested too deeply"),
    "an array of jobs": ("cluster.yaml", f"{YAML}slurm: {{array: 1-3}}", "--array would make something else"),
    "an option with no": ("cluster.yaml", f"{YAML}slurm: {{exclusive: false}}", "must be text, a number, or true"),
}
"""Files that are not valid specs: name, content or what makes it, and what is said. More are in tests/unit."""


def put(directory: Path, name: str, content: bytes | str | Callable[[Path], object]) -> Path:
    path = directory / name
    if callable(content):
        content(path)
    else:
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@pytest.mark.parametrize("bad", BAD)
def test_a_bad_spec_is_refused_in_plain_sentences_and_nothing_is_started(bad: str, tmp_path: Path, run: Run) -> None:
    """`up` explains the problem on stderr, exits with 2 and leaves no run; `check` says the same."""
    name, content, words = BAD[bad]
    if content is forbidden and os.geteuid() == 0:
        return  # root may read every file; the wheel's suite also runs this as an ordinary user
    path = put(tmp_path, name, content)
    code, out, err = run("up", path)
    sentences = err.splitlines()
    assert (code, out) == (2, ""), err[-2000:]
    assert sentences
    assert all(sentence.startswith(f"tflaunch: {path}: ") and sentence.isprintable() for sentence in sentences)
    assert words in err
    assert not (tmp_path / "home").exists()

    code, out, err = run("check", "--json", path)
    found = json.loads(out)
    assert (code, err, found["ok"]) == (2, "", False)
    assert len(found["problems"]) == len(sentences)
