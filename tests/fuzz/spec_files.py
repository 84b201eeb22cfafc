"""Spec files in three formats: read, linted, planned, checked and rendered."""

import io
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from fuzz.borders import Border
from fuzz.mutations import Raw, any_value, as_json, mutate, mutate_bytes
from fuzz.stages import little_work
from support.specs import DIRECTORY, GOOD, MACHINE
from tflaunch.cli.main import tflaunch
from tflaunch.clusterspec import load, spec_file
from tflaunch.clusterspec.model import Spec
from tflaunch.discovery import prepare, resolve
from tflaunch.errors import Problem, SpecError
from tflaunch.features.env import command
from tflaunch.features.render import targets
from tflaunch.plan import placeholders, planner, serialize

_SUFFIXES = {b"j": ".json", b"y": ".yaml", b"t": ".toml"}
_MOST_TASKS = 300  # TF_CONFIGs are written up to this number: each has the addresses of all tasks
_TEXTS = (
    "{task.index}", "{task.indx}", "{{run}}", "{cluster.worker}", "{cluster.ps}", "{chief.host}", "{attempt}", "{",
    "${HOME}", "${NOT_SET}", "${host:A}", "$${", "$HOME", "~/x", ">", "&&", "FOO=1", "*", "x-mine", "$schema",
    "1h30m", "90s", "1d2h3m4s5ms", "-1s", "h1:4", "h1:65536", "0.0.0.0:1", "localhost", "127.0.0.1:80", "::1",
    "worker", "chief", "ps", "evaluator", "master", "sidecar", "discover", "dns:h", "slurm", "nosuch:x", "auto",
    "python train.py 'x", "parameter_server", "none", "tpu", "a-b.c", "TF_CONFIG", "CUDA_VISIBLE_DEVICES", "-2:2",
)  # fmt: skip
_YAML = (
    "!!int x", "!!bool ", "!!timestamp x", "!!set {}", "!!binary x", "!x ", "!<a> ", "%YAML 9.9", "\n---\n", "&a b",
    "*a", "{<<: *a}", "? a", "| b", "> c", "\t", "...", "\x85", "12:30", "0x1F", "1_000", "~", "=", "[a]", "- - b",
)  # fmt: skip
_MORE = {
    "$schema": "cluster.schema.json",
    "x-mine": {"a": [1]},
    "cluster": {"chief": 1, "worker": ["a", "b:2222"]},
    "command": ["python", "train.py", "--index={task.index}", "{cluster.worker}", "{chief.host}"],
    "hosts": {"*": {"env": {"A": "{task.name}"}, "gpus": 2, "python": "~/py"}, "a": {"workdir": "/x/{run}"}},
    "sidecars": {"data": {"command": "serve {task.name}", "host": "a", "required": True}},
    "timeouts": {"stall": "1h30m", "finish": 5},
    "elastic": {"min_workers": 1, "retry": "5m"},
    "sync": {"paths": ["."], "exclude": ["data"]},
    "tensorboard": "logs",
    "slurm": {"partition": "gpu", "nodes": 2},
    "preload": ["json"],
    "warm": "10m",
    "container": {"image": "train", "resources": {"cpu": 2, "gpu": 1}},
}
_SIDECARS = {"sidecars": {"a": {"command": ["serve"], "required": True}, "b": {"command": "x", "env": {"A": 1}}}}
_FOUND = {"discover": {"worker": "dns:h", "ps": "file:x"}, "cluster": {"chief": 1}, "command": "train {cluster.ps}"}
_POOL = {"hosts": {"discover": "slurm", "*": {"gpus": 4}}, "cluster": {"worker": 4}, "command": "train"}
_BASES = [*GOOD.values(), _MORE, _MORE, _SIDECARS, _FOUND, _POOL]


def generate(chance: random.Random) -> bytes:
    """Return a format and a text in it: mostly a valid spec with a few changes."""
    value: Any = chance.choice(_BASES)
    for _ in range(chance.choice((0, 1, 1, 1, 2, 3, 6))):
        value = _mutated(value, chance)
    kind = chance.choice((b"j", b"y", b"t"))
    text = _as_toml(value).encode("utf-8", "surrogatepass") if kind == b"t" else as_json(value)
    if kind == b"y" and chance.random() < 0.5:
        text = _in_blocks(value, "").encode("utf-8", "surrogatepass")
    return kind + (mutate_bytes(text, chance) if chance.random() < 0.25 else text)


def _mutated(value: Any, chance: random.Random) -> Any:
    """Return a copy with a change; half of the changes use terms that have a meaning in a spec."""
    if chance.random() < 0.5:
        return mutate(value, chance)
    if isinstance(value, dict) and value:
        key = chance.choice(list(value))
        new = chance.choice(_TEXTS) if chance.random() < 0.1 else key
        return {**{name: item for name, item in value.items() if name != key}, new: _mutated(value[key], chance)}
    if isinstance(value, list) and value:
        place = chance.randrange(len(value))
        return [*value[:place], _mutated(value[place], chance), *value[place + 1 :]]
    other = any_value(chance) if chance.random() < 0.5 else Raw(chance.choice(_YAML))
    return chance.choice(_TEXTS) if chance.random() < 0.8 else other


def _as_toml(value: Any) -> str:
    """Return a table in TOML, with inline values."""
    if not isinstance(value, dict):
        return f"x = {_inline(value)}\n"
    return "".join(f"{_quoted(key)} = {_inline(item)}\n" for key, item in value.items())


def _inline(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_quoted(key)} = {_inline(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_inline, value)) + "]"
    return value.text if isinstance(value, Raw) else json.dumps(value)


def _in_blocks(value: Any, indent: str) -> str:
    """Return YAML in block style, as people write it."""
    if isinstance(value, dict) and value:
        return "".join(f"\n{indent}{_quoted(key)}: {_in_blocks(item, indent + '  ')}" for key, item in value.items())
    if isinstance(value, list) and value:
        return "".join(f"\n{indent}- {_in_blocks(item, indent + '  ')}" for item in value)
    return value.text if isinstance(value, Raw) else json.dumps(value)


def _quoted(text: str) -> str:
    return text if text.isidentifier() and text.isascii() else json.dumps(text)


def check(case: bytes) -> None:
    suffix, text = _SUFFIXES.get(case[:1], ".json"), case[1:]
    with little_work():
        _check_problems(_read(text, suffix, len(case)))
        if len(case) % 16 == 0:
            _check_verb(text)


def _read(text: bytes, suffix: str, number: int) -> Sequence[Problem]:
    """Return the problems of a spec; one without errors is planned."""
    try:
        file = spec_file.read_spec_stream(io.BytesIO(text), "case")._replace(suffix=suffix)
        spec = load.load_spec(file, environ={"HOME": "/nowhere", "TFLAUNCH_CONFIG": ""})
        if spec.discover or spec.pool is not None:
            spec = resolve.with_hosts("case", spec, Path("/nowhere"), is_offline=True)
        found = prepare.check_spec("case", Path("/nowhere"), spec)
        _plan(spec, number)
        return found
    except SpecError as error:
        return error.problems or [Problem("error", "", "", "")]


def _check_problems(problems: Sequence[Problem]) -> None:
    for problem in problems:
        assert isinstance(problem, Problem)
        assert problem.severity in ("error", "warning")
        sentence = problem.sentence()
        assert problem.message, "a problem without a message"
        assert sentence.isprintable(), f"{sentence!r} is not one line of text"
        assert len(sentence) < 100_000, "a sentence of 100,000 characters"


def _plan(spec: Spec, number: int) -> None:
    plan = planner.make_plan(spec, DIRECTORY, MACHINE)
    record = serialize.as_json(plan)
    assert serialize.from_json(json.loads(json.dumps(record))) == plan, "a plan does not survive the journal"
    if len(plan.tasks) > _MOST_TASKS:
        return
    json.dumps(serialize.as_json(placeholders.shown(plan)))
    for process in plan.processes():
        filled = placeholders.fill(process, plan, "run", "0")
        command.shell_exports(plan, filled)
    engine = list(targets.ENGINES)[number % len(targets.ENGINES)]
    if problems := targets.find_problems(engine, spec):
        _check_problems(problems)
    else:
        targets.render_spec(engine, spec, DIRECTORY, MACHINE, "pass")


def _check_verb(text: bytes) -> None:
    """Check that `check --json` prints JSON for any input."""
    done = CliRunner().invoke(tflaunch, ["check", "--json", "-"], input=text, standalone_mode=False)
    assert done.exception is None, done.exception
    shown = json.loads(done.stdout)
    assert shown["ok"] == (done.return_value == 0)
    assert done.return_value in (0, 2)


BORDER = Border(generate, check)
