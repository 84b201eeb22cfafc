"""Mistakes that people make (mistakes.yaml), and bad specs that are rarer, or hostile.

Each answer names place, cause and remedy, and its commands work. A bad spec is refused with exit code 2, one sentence
per problem, and nothing started.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from support.documents import check_usage
from support.specs import SMALLEST_LOCAL, tflaunch
from tflaunch.cli.main import run_command_line

pytestmark = pytest.mark.cli

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


class Bad(NamedTuple):
    """A file that is not a valid spec: its name, its content (or what makes it), and expected messages."""

    title: str
    file: str
    content: bytes | str | Callable[[Path], object]
    words: tuple[str, ...]


def text(title: str, file: str, content: bytes | str | Callable[[Path], object], *words: str) -> Bad:
    return Bad(title, file, content, words)


def field(title: str, fields: dict[str, Any], *words: str) -> Bad:
    """The smallest local spec with some fields added or changed, as JSON."""
    return Bad(title, "cluster.json", json.dumps({**SMALLEST_LOCAL, **fields}), words)


def in_yaml(title: str, more: str, *words: str) -> Bad:
    """The smallest local spec in YAML, plus more YAML."""
    return Bad(title, "cluster.yaml", f"cluster: {{worker: 2}}\ncommand: [python, train.py]\n{more}\n", words)


def toml(title: str, more: str, *words: str) -> Bad:
    """A command in TOML, plus more TOML."""
    return Bad(title, "cluster.toml", f'command = "python train.py"\n{more}\n', words)


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


NO_FILES = [
    text("link-to-itself", "loop.json", loop, "cannot be read"),
    text("unreadable", "secret.json", forbidden, "Permission denied"),
]
NO_TEXTS = [
    text("huge-and-good", "cluster.json", json.dumps(SMALLEST_LOCAL).ljust(LIMIT + 1), "larger than 4 MiB"),
    text("binary", "cluster.json", bytes(range(256)) * 10, "UTF-8"),
    text("utf-16", "cluster.json", json.dumps(SMALLEST_LOCAL).encode("utf-16"), "is text in UTF-16; save it as UTF-8"),
    text("no-ending", "cluster", json.dumps(SMALLEST_LOCAL), "has no extension, so its format is unknown"),
]
NO_JSON = [
    text("truncated-json", "cluster.json", json.dumps(SMALLEST_LOCAL)[:-3], "is not valid JSON", "line 1"),
    text("json-nan", "cluster.json", '{"timeouts": {"grace": NaN}}', "NaN, which is not valid JSON"),
    text("json-10000-digits", "cluster.json", f'{{"cluster": {{"worker": {DIGITS}}}}}', "smaller number"),
    text("json-100000-brackets", "cluster.json", "[" * 100_000, "nested too deeply"),
    text("json-300000-values", "cluster.json", "[" + "0," * 300_000 + "0]", "more than 200000 values"),
    text("json-key-twice-inside", "cluster.json", '{"cluster": {"worker": 1, "worker": 2}}', "'worker' twice"),
]
NO_YAML = [
    in_yaml("truncated-yaml", "roles: {worker: {gpus: [", "is not usable YAML", "line"),
    in_yaml(
        "yaml-object", "env: !!python/object/apply:os.mkdir [runs]", "tag:yaml.org,2002:python/object/apply:os.mkdir"
    ),
    in_yaml("yaml-cycle", "env: &a\n  A: *a", "refers to itself"),
    in_yaml("yaml-alias-bomb", alias_bomb(12), "more than 200000 values"),
    in_yaml("yaml-merge-bomb", merge_bomb(12)),
]
NO_TOML = [
    toml("truncated-toml", "[cluster", "is not valid TOML", "line 2"),
    toml("toml-100000-dots", ".".join("a" * 100_000) + " = 1", "nested too deeply"),
]
NO_SPECS = [
    field("slurm-array", {"slurm": {"array": "1-3"}}, "slurm.array: --array would make something else of the job"),
    field("slurm-value", {"slurm": {"exclusive": False}}, "slurm.exclusive: must be text, a number, or true"),
]
"""More are in tests/unit: test_spec.py, test_lint.py."""
ALL = [*NO_FILES, *NO_TEXTS, *NO_JSON, *NO_YAML, *NO_TOML, *NO_SPECS]

# Root may read every file; the wheel's suite also runs all of this as an ordinary user.
CORPUS = [bad for bad in ALL if bad.content is not forbidden or os.geteuid() != 0]


def put(bad: Bad, directory: Path) -> Path:
    path = directory / bad.file
    if callable(bad.content):
        bad.content(path)
    else:
        path.write_bytes(bad.content.encode() if isinstance(bad.content, str) else bad.content)
    return path


@pytest.mark.parametrize("bad", CORPUS, ids=[bad.title for bad in CORPUS])
def test_a_bad_spec_is_refused_in_plain_sentences_and_nothing_is_started(bad: Bad, tmp_path: Path, run: Run) -> None:
    """`up` explains the problem on stderr, exits with 2 and leaves no run; `check` says the same."""
    path = put(bad, tmp_path)
    code, out, err = run("up", path)
    sentences = err.splitlines()
    assert (code, out) == (2, ""), err[-2000:]
    assert sentences
    assert all(sentence.startswith(f"tflaunch: {path}: ") and sentence.isprintable() for sentence in sentences)
    for words in bad.words:
        assert words in err
    assert not (tmp_path / "home").exists()

    code, out, err = run("check", "--json", path)
    found = json.loads(out)
    assert (code, err, found["ok"]) == (2, "", False)
    assert len(found["problems"]) == len(sentences)
