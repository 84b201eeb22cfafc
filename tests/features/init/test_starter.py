"""What `init` writes: correct whatever it was asked for, and as useful with its optional fields."""

import itertools
import json
import re
from pathlib import Path

import jsonschema
import pytest

from tflaunch.cli.arguments.cluster import ClusterOptions, cluster_of
from tflaunch.clusterspec import load, schema
from tflaunch.clusterspec.spec_file import SUFFIXES, SpecFile
from tflaunch.discovery import prepare
from tflaunch.features.init.starter import starter_spec

COMMANDS = (["python", "train.py", "--epochs", "2"], ["./train"], ["python3.11", "-m", "trainer"])
HOSTS = (None, "localhost", "h1", "h1,h2", "h1:2,h2:1", "10.0.0.1:2222,10.0.0.2:2222", "a-b.example.org,h2")
ROLES = [
    ClusterOptions(workers, hosts, ps, chief, evaluator)
    for workers, hosts, (ps, chief), evaluator in itertools.product(
        (None, 1, 3), HOSTS, ((0, False), (0, True), (2, True)), (False, True)
    )
    if hosts is None or ":" not in hosts or (workers == 1 and not ps and not chief and not evaluator) or "h1:2" in hosts
]
OPTIONAL = re.compile(r"^#(?=[a-z]+(: | = ))", re.MULTILINE)
ODD = "a\"b\\ 'x': {y} #z\t\n\x7f\x85\u2028\U0001f600 é"


def written(roles: ClusterOptions, suffix: str, command: list[str]) -> str:
    return starter_spec("train", cluster_of(roles), command, Path("dir with blank", f"cluster{suffix}"))


def checked(text: str, suffix: str) -> None:
    """Require that `check` has nothing to say about a spec."""
    assert prepare.read_spec(SpecFile(f"cluster{suffix}", Path(), suffix, text), is_offline=True)[1] == []


def parsed(text: str, suffix: str) -> dict[str, object]:
    return dict(load.parse_spec_file(SpecFile(f"cluster{suffix}", Path(), suffix, text)))


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_what_is_written_passes_the_check(suffix: str) -> None:
    for number, roles in enumerate(ROLES):
        command = COMMANDS[number % len(COMMANDS)]
        text = written(roles, suffix, command)
        checked(text, suffix)
        fields = parsed(text, suffix)
        fields.pop("$schema", None)
        assert fields == {"name": "train", "cluster": cluster_of(roles), "command": command}


@pytest.mark.parametrize("suffix", [".yaml", ".toml"])
def test_every_optional_field_can_be_uncommented(suffix: str) -> None:
    for number, roles in enumerate(ROLES):
        text = written(roles, suffix, COMMANDS[number % len(COMMANDS)])
        found = list(OPTIONAL.finditer(text))
        assert len(found) >= 5
        with_all = OPTIONAL.sub("", text)
        checked(with_all, suffix)
        assert len(parsed(with_all, suffix)) == 3 + len(found)
        for match in found if number % 8 == 0 else ():
            checked(text[: match.start()] + text[match.end() :], suffix)


def test_fields_are_offered_where_they_make_sense() -> None:
    def offered(roles: ClusterOptions, command: list[str]) -> set[str]:
        text = OPTIONAL.sub("", written(roles, ".yaml", command))
        return parsed(text, ".yaml").keys() & {"hosts", "sync", "elastic"}

    assert offered(ClusterOptions(2), ["./train"]) == set()
    assert offered(ClusterOptions(2, "localhost"), ["python", "t.py"]) == set()
    assert offered(ClusterOptions(2, "h1"), ["./train"]) == {"hosts", "sync"}
    assert offered(ClusterOptions(2, "h1,h2"), ["python", "t.py"]) == {"hosts", "sync", "elastic"}


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_any_word_of_a_command_arrives_as_it_is(suffix: str) -> None:
    command = ["python", "-c", ODD, "yes", "1e3", "~", "", "- x", "# y", "${A}"]
    assert parsed(written(ClusterOptions(2), suffix, command), suffix)["command"] == command
    text = starter_spec("train", {"worker": 1}, ["./train"], Path("a\nname: b.yaml"))  # stays in its comment
    assert parsed(text, ".yaml")["name"] == "train"


@pytest.mark.parametrize(("suffix", "first"), [(".yaml", "# yaml-language-server: $schema="), (".toml", "#:schema ")])
def test_the_first_line_names_the_schema_for_editors(suffix: str, first: str) -> None:
    identity = schema.json_schema()["$id"]
    assert written(ClusterOptions(2), suffix, ["./train"]).splitlines()[0] == f"{first}{identity}"
    assert parsed(written(ClusterOptions(2), ".json", ["./train"]), ".json")["$schema"] == identity


def test_the_schema_in_the_package_is_that_of_the_model() -> None:
    """To update it: tflaunch schema > launcher/tflaunch/clusterspec/cluster.schema.json."""
    assert schema.FILE.read_text(encoding="utf-8") == json.dumps(schema.json_schema(), indent=2) + "\n"
    for roles in ROLES[::40]:
        text = OPTIONAL.sub("", written(roles, ".yaml", COMMANDS[0]))
        jsonschema.validate(parsed(text, ".yaml"), json.loads(schema.FILE.read_text(encoding="utf-8")))
