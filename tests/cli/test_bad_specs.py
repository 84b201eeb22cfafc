"""Bad specs: each is refused with exit code 2, one sentence per problem, and nothing started."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from support.specs import SMALLEST_LOCAL, tflaunch

pytestmark = pytest.mark.cli

LIMIT = 4 * 1024 * 1024
DIGITS = "9" * 10_000


class Bad(NamedTuple):
    """A file that is not a valid spec: its name, its content (or what makes it), and expected messages."""

    title: str
    file: str
    content: bytes | str | Callable[[Path], object]
    words: tuple[str, ...]


def text(title: str, file: str, content: bytes | str, *words: str) -> Bad:
    """A file with this content."""
    return Bad(title, file, content, words)


def field(title: str, fields: dict[str, Any], *words: str) -> Bad:
    """The smallest local spec with some fields added or changed, as JSON."""
    return Bad(title, "cluster.json", json.dumps({**SMALLEST_LOCAL, **fields}), words)


def place(title: str, file: str, make: Callable[[Path], object], *words: str) -> Bad:
    """Something that is not an ordinary file."""
    return Bad(title, file, make, words)


def yaml(title: str, more: str, *words: str) -> Bad:
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


def below_a_file(path: Path) -> None:
    """A path that leads through a file."""
    path.parent.write_text("")


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
    place("missing", "missing.json", lambda _: None, "No such file"),
    place("directory", "specs.json", Path.mkdir, "Is a directory"),
    place("link-to-itself", "loop.json", loop, "cannot be read"),
    place("below-a-file", "file/cluster.json", below_a_file, "Not a directory"),
    place("name-too-long", "x" * 300 + ".json", lambda _: None, "cannot be read"),
    place("unreadable", "secret.json", forbidden, "Permission denied"),
]
NO_TEXTS = [
    text("empty", "cluster.json", b"", "is empty"),
    text("blank", "cluster.yaml", " \n\t\r\n", "is empty"),
    text("only-a-byte-order-mark", "cluster.toml", b"\xef\xbb\xbf", "is empty"),
    text("huge", "cluster.json", b" " * (LIMIT + 1), "larger than 4 MiB"),
    text("huge-and-good", "cluster.json", json.dumps(SMALLEST_LOCAL).ljust(LIMIT + 1), "larger than 4 MiB"),
    text("binary", "cluster.json", bytes(range(256)) * 10, "UTF-8"),
    text("program", "cluster.yaml", b"\x7fELF\x02\x01\x01" + bytes(100), "is not usable YAML"),
    text("utf-16", "cluster.json", json.dumps(SMALLEST_LOCAL).encode("utf-16"), "is text in UTF-16; save it as UTF-8"),
    text("utf-16-without-a-mark", "cluster.json", json.dumps(SMALLEST_LOCAL).encode("utf-16-le"), "is not valid JSON"),
    text("latin-1", "cluster.yaml", "name: caf\xe9".encode("latin-1"), "UTF-8 (byte 9)"),
    text("unknown-ending", "cluster.ini", json.dumps(SMALLEST_LOCAL), "unknown extension '.ini'"),
    text("no-ending", "cluster", json.dumps(SMALLEST_LOCAL), "has no extension, so its format is unknown"),
    text("python-program", "train.py", "import os", "is a program, not a spec", "try: tflaunch run -n 2 -- python "),
]
NO_JSON = [
    text("truncated-json", "cluster.json", json.dumps(SMALLEST_LOCAL)[:-3], "is not valid JSON", "line 1"),
    text("json-trailing-comma", "cluster.json", '{"cluster": {"worker": 2},}', "is not valid JSON", "line 1"),
    text("json-comment", "cluster.json", '{\n// two workers\n"cluster": {"worker": 2}}', "line 2, column 1", "// two"),
    text("json-single-quotes", "cluster.json", "{'cluster': {'worker': 2}}", "is not valid JSON"),
    text("json-two-documents", "cluster.json", "{} {}", "is not valid JSON", "Extra data"),
    text("json-nan", "cluster.json", '{"timeouts": {"grace": NaN}}', "NaN, which is not valid JSON"),
    text("json-infinity", "cluster.json", '{"timeouts": {"grace": -Infinity}}', "-Infinity, which is not valid JSON"),
    text("json-10000-digits", "cluster.json", f'{{"cluster": {{"worker": {DIGITS}}}}}', "smaller number"),
    text("json-400-digits", "cluster.json", f'{{"cluster": {{"worker": {DIGITS[:400]}}}}}', "cluster.worker"),
    text("json-100000-brackets", "cluster.json", "[" * 100_000, "nested too deeply"),
    text("json-100000-objects", "cluster.json", '{"a":' * 100_000, "nested too deeply"),
    text("json-40-levels", "cluster.json", '{"a":' * 40 + "1" + "}" * 40, "nested too deeply", "32 levels"),
    text("json-300000-values", "cluster.json", "[" + "0," * 300_000 + "0]", "more than 200000 values"),
    text("json-key-twice", "cluster.json", '{"name": "a", "name": "b"}', "'name' twice"),
    text("json-key-twice-inside", "cluster.json", '{"cluster": {"worker": 1, "worker": 2}}', "'worker' twice"),
]
NO_YAML = [
    yaml("truncated-yaml", "roles: {worker: {gpus: [", "is not usable YAML", "line"),
    yaml("yaml-tab", "env:\n\tA: x", "is not usable YAML", "line 4 is indented with a tab; YAML allows only spaces"),
    yaml("yaml-unknown-alias", "env: *nothing", "undefined alias", "line 3, column 6"),
    yaml("yaml-key-twice", "name: a\nname: b", "'name' occurs twice", "line 4, column 1"),
    yaml("yaml-number-as-key", "env: {1: x}", "the key 1 is not text"),
    yaml("yaml-list-as-key", "env: {[a]: x}", "is not text"),
    yaml("yaml-null-as-key", "env: {~: x}", "the key None is not text"),
    yaml("yaml-two-documents", "---\ncluster: {worker: 1}", "is not usable YAML", "line 3"),
    yaml("yaml-object", "env: !!python/object/apply:os.mkdir [runs]", "tag:yaml.org,2002:python/object/apply:os.mkdir"),
    yaml("yaml-binary", "name: !!binary aGVsbG8=", "tag"),
    yaml("yaml-set", "env: !!set {A}", "tag"),
    yaml("yaml-empty-integer", 'name: !!int ""', "tag"),
    yaml("yaml-no-boolean", "name: !!bool x", "tag"),
    yaml("yaml-no-date", "name: !!timestamp x", "tag"),
    yaml("yaml-tag-of-two-lines", "name: !<a%0Ab> x", "tag"),
    yaml("yaml-impossible-character", 'name: "\\UFFFFFFFF"', "is not usable YAML"),
    yaml("yaml-half-a-character", 'workdir: "\\ud800"', "workdir"),
    yaml("yaml-cycle", "env: &a\n  A: *a", "refers to itself"),
    yaml("yaml-cycle-of-lists", "preload: &a [*a]", "refers to itself"),
    yaml("yaml-merge-of-itself", "env: &a {<<: *a, B: 1}", "line 3"),
    yaml("yaml-alias-bomb", alias_bomb(12), "more than 200000 values"),
    yaml("yaml-merge-bomb", merge_bomb(12)),
    text("yaml-100000-brackets", "cluster.yaml", "[" * 100_000, "nested too deeply"),
    yaml("yaml-10000-digits", f"restart: {{max: {DIGITS}}}", "is not usable YAML"),
    yaml("yaml-10000-hexadecimal-digits", f"restart: {{max: 0x{DIGITS}}}", "restart.max"),
    yaml("yaml-nan", "timeouts: {grace: .nan}", "timeouts.grace", "must be a duration"),
]
NO_TOML = [
    toml("truncated-toml", "[cluster", "is not valid TOML", "line 2"),
    toml("toml-key-twice", 'command = "b"', "is not valid TOML", "line 2"),
    toml("toml-table-twice", "[cluster]\nworker = 1\n[cluster]\nchief = 1", "is not valid TOML", "line 4"),
    toml("toml-nan", "cluster.worker = 1\ntimeouts.grace = nan", "timeouts.grace"),
    toml("toml-date", "cluster.worker = 1\nenv.A = 2026-11-20", "env.A: must be text"),
    toml("toml-10000-digits", f"cluster.worker = {DIGITS}", "smaller number"),
    toml("toml-10000-hexadecimal-digits", f"cluster.worker = 0x{DIGITS}", "cluster.worker"),
    toml("toml-hexadecimal-digits-in-env", f"cluster.worker = 1\nenv.A = 0x{DIGITS}", "env.A"),
    toml("toml-100000-brackets", "cluster = " + "[" * 100_000, "nested too deeply"),
    toml("toml-100000-dots", ".".join("a" * 100_000) + " = 1", "nested too deeply"),
    toml("toml-40-levels", ".".join("a" * 40) + " = 1", "nested too deeply"),
]
WRONG_TYPES = [
    *(
        text(f"the-spec-is-{kind}", "cluster.json", content, "must be an object")
        for kind, content in {"null": "null", "a-number": "5", "text": '"worker"', "a-list": "[]"}.items()
    ),
    text("no-field", "cluster.json", "{}", "cluster: is missing"),
    field("cluster-is-a-list", {"cluster": ["10.0.0.1:2222"]}, "cluster: must be an object"),
    field("worker-is-text", {"cluster": {"worker": "2"}}, "cluster.worker: must be a number"),
    field("worker-is-nothing", {"cluster": {"worker": 0}}, "cluster.worker: has 0 tasks"),
    field("worker-is-a-million", {"cluster": {"worker": 1_000_000}}, "cluster.worker: has 1000000 tasks"),
    field("address-is-a-number", {"cluster": {"worker": [2222]}}, "cluster.worker[0]: must be"),
    field("address-is-a-url", {"cluster": {"worker": ["grpc://a:1"]}}, "cluster.worker[0]", "is a URL"),
    field("ipv6-without-brackets", {"cluster": {"worker": ["2001:db8::5"]}}, "cluster.worker[0]", '"[2001:db8::5]"'),
    field("address-has-port-0", {"cluster": {"worker": ["alpha:0"]}}, "cluster.worker[0]", "no valid port"),
    field("command-is-a-number", {"command": 5}, "command: must be a list of words"),
    field("command-is-empty", {"command": []}, "command: is empty"),
    field("command-is-half-quoted", {"command": "python 'train.py"}, "command: cannot be split"),
    field("word-is-a-number", {"command": ["python", 5]}, "command[1]: must be text, not 5; put it in quotes"),
    field("word-holds-nul", {"command": ["python", "a\0b"]}, "command[1]: contains a NUL"),
    field("word-holds-half-a-character", {"command": ["python", "\ud800"]}, "command[1]"),
    field("name-is-a-path", {"name": "../up"}, "name: '../up' cannot be a name"),
    field("env-is-a-list", {"env": ["A=1"]}, "env: must be an object"),
    field("variable-is-null", {"env": {"A": None}}, "env.A: must be text"),
    field("variable-has-an-equals-sign", {"env": {"A=B": "x"}}, "'A=B' cannot be the name"),
    field("variable-is-not-set", {"env": {"A": "${TFLAUNCH_NO_SUCH}"}}, "env.A", "is not set"),
    field("restart-is-a-number", {"restart": 3}, "restart: must be an object"),
    field("duration-is-a-wish", {"timeouts": {"grace": "soon"}}, "timeouts.grace: must be a duration"),
    field("unknown-field", {"comand": "x"}, "comand: unknown field", "did you mean 'command'?"),
    field("unknown-strategy", {"strategy": "horovod"}, "strategy: must be multi_worker_mirrored"),
    field("unknown-field-of-two-lines", {"a\nb": 1}, "unknown field"),
    field("unknown-field-that-clears-the-screen", {"\x1b[2J": 1}, "unknown field"),
    field("unknown-field-of-half-a-character", {"\ud800": 1}, "unknown field"),
    field("role-of-two-lines", {"cluster": {"worker": 1, "a\nb": 1}}, "unknown role"),
    field(
        "host-that-is-an-option", {"sidecars": {"b": {"command": "b", "host": "-oProxyCommand=x"}}}, "sidecars.b.host"
    ),
    field("three-at-once", {"name": 5, "env": 5, "nmae": "x"}, "name: ", "env: ", "nmae: "),
]
PARAMETER_SERVER = {"chief": 1, "worker": 1, "ps": 1}
NOT_FOR_TENSORFLOW = [
    field("no-task", {"cluster": {}}, "cluster: has no task"),
    field("master", {"cluster": {"master": 1, "worker": 1}}, "cluster.master", "rename it to 'chief'"),
    field(
        "tensorboard-in-cluster",
        {"cluster": {"worker": 1, "tensorboard": 1}},
        "cluster.tensorboard",
        '"tensorboard": "logs/"',
    ),
    field("unknown-role", {"cluster": {"worker": 1, "wroker": 1}}, "cluster.wroker", "did you mean 'worker'?"),
    field("two-chiefs", {"cluster": {"worker": 1, "chief": 2}}, "cluster.chief: has 2 tasks"),
    field("two-evaluators", {"cluster": {"worker": 1, "evaluator": 2}}, "cluster.evaluator: has 2 tasks"),
    field("mirrored-with-ps", {"cluster": PARAMETER_SERVER, "strategy": "multi_worker_mirrored"}, "cluster.ps: "),
    field("more-workers-than-tf-config-can-name", {"cluster": {"worker": 10_000}}, "cluster: ", "TF_CONFIG"),
    field("no-worker", {"cluster": {"evaluator": 1}}, "cluster: has no worker"),
    field("ps-without-chief", {"cluster": {"worker": 1, "ps": 1}}, "needs a chief"),
    field("ps-alone", {"cluster": {"ps": 1}}, "needs a chief", "needs a worker"),
    field("two-mirrored", {"strategy": "mirrored"}, "trains in one process"),
    field("two-tpu", {"strategy": "tpu"}, "trains in one process"),
    field("one-address-twice", {"cluster": {"worker": ["a:1", "a:1"]}}, "cluster.worker[1]: a:1 is the address of"),
    field("localhost-among-hosts", {"cluster": {"worker": ["a:1", "localhost:1"]}}, "cluster.worker[1]: 'localhost'"),
    text("no-command", "cluster.json", '{"cluster": {"worker": 1}}', "command: worker has nothing to run"),
    field("settings-of-no-role", {"roles": {"ps": {"gpus": 1}}}, "roles.ps: the cluster has no role 'ps'"),
    field("server-of-a-mirrored-worker", {"roles": {"worker": {"server": True}}}, "roles.worker.server: "),
    field(
        "server-with-a-command",
        {"cluster": PARAMETER_SERVER, "roles": {"ps": {"server": True, "command": "x"}}},
        "roles.ps: has both",
    ),
    field("ignored-spelling", {"env": {"TF_USE_LEGACY_KERAS": "yes"}}, "env.TF_USE_LEGACY_KERAS: TensorFlow ignores"),
    field("own-tf-config", {"env": {"TF_CONFIG": "{}"}}, "env.TF_CONFIG: is set by tflaunch"),
    field(
        "more-gpus-than-there-are",
        {"roles": {"worker": {"gpus": 1}}, "hosts": {"localhost": {"gpus": 1}}},
        "hosts.localhost.gpus: its tasks ask for 2",
    ),
    field("backoff-backwards", {"restart": {"backoff": [2, 1]}}, "restart.backoff: the first delay is longer"),
    field("elastic", {"elastic": {"min_workers": 9}}, "elastic.min_workers: 9 is not between 1 and the 2 workers"),
    field("no-place-of-hosts", {"hosts": {"discover": 5}}, "hosts.discover: must be a source of hosts such as"),
    field(
        "no-engine", {"hosts": {"discover": "dsn:worker"}}, "hosts.discover: there is no engine 'dsn'; use one of dns"
    ),
    field("slurm-array", {"slurm": {"array": "1-3"}}, "slurm.array: --array would make something else of the job"),
    field("slurm-short-option", {"slurm": {"N": 2}}, "slurm.N: must be a long option of sbatch"),
    field("slurm-value", {"slurm": {"exclusive": False}}, "slurm.exclusive: must be text, a number, or true"),
    field("preload", {"preload": ["tensor flow"]}, "preload[0]: 'tensor flow' is not a valid module name"),
]
ALL = [*NO_FILES, *NO_TEXTS, *NO_JSON, *NO_YAML, *NO_TOML, *WRONG_TYPES, *NOT_FOR_TENSORFLOW]

# Root may read every file; the wheel's suite also runs all of this as an ordinary user.
CORPUS = [bad for bad in ALL if bad.content is not forbidden or os.geteuid() != 0]


def put(bad: Bad, directory: Path) -> Path:
    """Make the bad file and return its path."""
    path = directory / bad.file
    if callable(bad.content):
        bad.content(path)
    else:
        path.write_bytes(bad.content.encode() if isinstance(bad.content, str) else bad.content)
    return path


@pytest.mark.parametrize("bad", CORPUS, ids=[bad.title for bad in CORPUS])
def test_a_bad_spec_is_refused_in_plain_sentences_and_nothing_is_started(bad: Bad, tmp_path: Path):
    """`up` explains the problem on stderr, exits with 2 and leaves no run; `check` says the same."""
    home, path = tmp_path / "home", put(bad, tmp_path)
    up = tflaunch("up", path, home=home)
    sentences = up.stderr.splitlines()
    assert (up.returncode, up.stdout) == (2, ""), up.stderr[-2000:]
    assert sentences
    assert all(sentence.startswith(f"tflaunch: {path}: ") and sentence.isprintable() for sentence in sentences)
    for words in bad.words:
        assert words in up.stderr
    assert not home.exists()

    check = tflaunch("check", "--json", path, home=home)
    found = json.loads(check.stdout)
    assert (check.returncode, check.stderr, found["ok"]) == (2, "", False)
    assert len(found["problems"]) == len(sentences)


def test_no_two_bad_specs_have_one_title():
    """Each must be found by its name."""
    assert len({bad.title for bad in CORPUS}) == len(CORPUS)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--set", "restart.max"), "--set 'restart.max' is not PATH=VALUE"),
        (("--set", "command[9]=x"), "leads through 9"),
        (("--set", "restart.maximum=1"), "restart.maximum: unknown field"),
        (("--set", "cluster.ps=1"), "needs a chief"),
        (("--name", "a b"), "name: 'a b' cannot be a name"),
        (("--", ""), "command: is empty"),
        (("--set", "hosts.discover=file:nosuch"), "nosuch cannot be read"),
    ],
    ids=["no-value", "no-index", "no-field", "no-chief", "no-name", "no-command", "no-hosts"],
)
def test_a_command_line_that_makes_a_good_spec_bad_is_refused_like_a_bad_one(
    arguments: tuple[str, ...], words: str, tmp_path: Path
):
    """Wherever the mistake comes from."""
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps(SMALLEST_LOCAL))
    up = tflaunch("up", path, *arguments, home=tmp_path / "home")
    assert (up.returncode, up.stdout) == (2, "")
    assert up.stderr.startswith(f"tflaunch: {path}: ")
    assert words in up.stderr
    assert not (tmp_path / "home").exists()
