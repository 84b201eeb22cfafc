"""tflaunch without a feature, or two, or any: their folders are deleted from a copy, and nothing misses them.

`make test` takes out one feature and one pair, others each day, and then all of them. TFLAUNCH_TEST_FEATURE=NAME
chooses it, TFLAUNCH_TEST_LONG=1 takes out each, and each pair.
"""

import datetime as dt
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from support.launch import LONG
from support.specs import REPOSITORY
from tflaunch.cli.arguments.launch import flag_of
from tflaunch.cli.main import verbs
from tflaunch.feature import Feature, features

pytestmark = pytest.mark.cli

SIDES = ("launcher/tflaunch", "worker/tflaunch_worker")
NAMES = sorted({path.parent.name for side in SIDES for path in (REPOSITORY / side).glob("features/*/__init__.py")})
ALL = "all features"
CHOSEN = os.environ.get("TFLAUNCH_TEST_FEATURE") or NAMES[dt.date.today().toordinal() % len(NAMES)]  # noqa: DTZ011
SERVED: dict[str, Any] = {
    "checkpoints": {"dir": "state"},
    "collect": ["*.txt"],
    "kubernetes": {"namespace": "train"},
    "network: private": "private",
    "notify": {"exec": ["true"]},
    "preload": ["json"],
    "retention": {"keep": 3},
    "setup": "make env",
    "setup_files": ["lock"],
    "slurm": {"nodes": 1},
    "warm": "10m",
}
"""A value for each field, or value of one, that a feature declares."""
MISSING = "needs a part of tflaunch that is missing from this installation; remove it, or install all of tflaunch"


PAIRS = list(combinations(NAMES, 2))
DRAWN = PAIRS[dt.date.today().toordinal() * 149 % len(PAIRS)]  # noqa: DTZ011


def gone_with(*names: str) -> set[str]:
    """Return features, and those that need them."""
    gone = {*NAMES} if ALL in names else {*names}
    while more := {name for name, feature in features().items() if gone & {*feature.needs}} - gone:
        gone |= more
    return gone


class Copy(NamedTuple):
    """A copy of the code without some features; ``lacks`` names them."""

    lacks: str
    directory: Path
    features: dict[str, Feature]

    @property
    def env(self) -> dict[str, str]:
        """An environment in which Python imports this copy."""
        path = os.pathsep.join(str((self.directory / side).parent) for side in SIDES)
        return {**os.environ, "PYTHONPATH": path, "TFLAUNCH_HOME": str(self.directory / "home")}

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a Python program."""
        command = [sys.executable, *arguments]
        return subprocess.run(command, cwd=REPOSITORY, env=self.env, capture_output=True, text=True, check=False)

    def tflaunch(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run tflaunch."""
        return self.run("-m", "tflaunch", *arguments)

    def refuses(self, *arguments: str) -> str:
        """Return the sentence with which tflaunch refuses a command."""
        done = self.tflaunch(*arguments)
        about = f"without {self.lacks}, `tflaunch {' '.join(arguments)}`"
        assert done.returncode == 2, f"{about} ends with {done.returncode}: {done.stderr}"
        *usage, sentence = done.stderr.splitlines()
        assert all(line.startswith(("Usage:", "Try ")) or not line for line in usage), f"{about} says {done.stderr}"
        return sentence


@pytest.fixture(scope="module", params=[*(NAMES if LONG else [CHOSEN]), ALL])
def copy(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Copy]:
    """A copy without a feature: those that need it are still in their folders, and missing."""
    directory = tmp_path_factory.mktemp("without")
    for side in SIDES:
        shutil.copytree(REPOSITORY / side, directory / side, ignore=shutil.ignore_patterns("__pycache__"))
        for name in NAMES if request.param == ALL else [request.param]:
            shutil.rmtree(directory / side / "features" / name, ignore_errors=True)
    lacks = request.param if request.param == ALL else f"feature {request.param}"
    yield Copy(lacks, directory, {name: features()[name] for name in gone_with(request.param)})
    shutil.rmtree(directory)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Copy:
    """A copy with all features."""
    directory = tmp_path_factory.mktemp("whole")
    for side in SIDES:
        shutil.copytree(REPOSITORY / side, directory / side, ignore=shutil.ignore_patterns("__pycache__"))
    return Copy("no feature", directory, {})


EVERYTHING = """
import importlib, pkgutil, sys
import tflaunch, tflaunch_worker
from tflaunch.cli.main import tflaunch as command
from tflaunch.feature import features
from tflaunch_worker.feature import features as features_of_agents

there = {"tflaunch": features(), "tflaunch_worker": features_of_agents()}
for package in (tflaunch, tflaunch_worker):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        side, _, rest = module.name.partition(".")
        if rest.endswith("__main__") or rest.split(".")[0] in ("training", "examples"):
            continue
        if not rest.startswith("features.") or rest.split(".")[1] in there[side]:
            importlib.import_module(module.name)
for arguments in (["help", "--all"], ["check", "cluster_specs/hello.json"], ["up", "--help"]):
    try:
        command.main(arguments)
    except SystemExit as end:
        assert not end.code, arguments
print(*features())
"""
"""Imports all modules, but those of features that are missing, and uses commands that ask all features."""


@pytest.mark.parametrize("pair", PAIRS if LONG else [DRAWN], ids="-".join)
def test_without_a_pair_all_others_are_there(whole: Copy, pair: tuple[str, str]) -> None:
    """Every module can be imported, commands answer, and a job runs."""
    moved = {}
    for side in SIDES:
        for name in pair:
            folder = whole.directory / side / "features" / name
            if folder.exists():
                moved[folder] = folder.rename(whole.directory / f"{side.replace('/', '-')}-{name}")
    try:
        done = whole.run("-c", EVERYTHING)
        assert done.returncode == 0, f"without {pair}: {done.stderr}"
        assert set(done.stdout.splitlines()[-1].split()) == {*features()} - gone_with(*pair)
        ran = whole.tflaunch("run", "-n", "2", "--", "true")
        assert (ran.returncode, "left out" in ran.stderr) == (0, False), f"without {pair}: {ran.stderr}"
    finally:
        for folder, away in moved.items():
            away.rename(folder)


def test_help_lists_all_verbs_but_those_of_the_feature(copy: Copy) -> None:
    """No other verb misses it."""
    done = copy.tflaunch("help", "--all")
    assert (done.returncode, done.stderr) == (0, "")
    listed = re.findall(r"^  ([a-z]+)  ", done.stdout, re.MULTILINE)
    gone = [verb for feature in copy.features.values() for verb in feature.verbs]
    assert not set(gone) & set(listed)
    kept = {verb for name, feature in features().items() if name not in copy.features for verb in feature.verbs}
    assert {"up", "ps", *(kept & {*verbs()})} <= set(listed)


def test_its_verbs_are_refused(copy: Copy) -> None:
    """In one sentence, which suggests no verb that is gone."""
    gone = [verb for feature in copy.features.values() for verb in feature.verbs]
    for verb in gone:
        sentence = copy.refuses(verb)
        assert sentence.startswith(f"Error: No such command '{verb}'")
        assert not re.search(rf"`tflaunch ({'|'.join(gone)})\b", sentence), f"without {copy.lacks}: {sentence}"


HELP = """
from tflaunch.cli.main import tflaunch
for verb in ("up", "run", "ls", "check", "down"):
    tflaunch.main([verb, "--help"], standalone_mode=False)
"""


def test_help_and_answers_do_not_name_it(copy: Copy) -> None:
    """Neither its options nor its verbs."""
    shown = (
        copy.run("-c", HELP).stdout + copy.refuses("down", "--volumes") + copy.refuses("run", "--interactive", "true")
    )
    for feature in copy.features.values():
        for name in feature.options:
            assert not re.search(rf"{flag_of(name)}\b(?!-)", shown), f"without {copy.lacks}: {name}"
        for named in (*feature.verbs, *(f"up --on {engine}" for engine in feature.engines)):
            assert f"tflaunch {named}" not in shown, f"without {copy.lacks}: {named}"


def test_its_options_are_refused(copy: Copy) -> None:
    """As any other that does not exist; so are its engines."""
    for feature in copy.features.values():
        for name in feature.options:
            assert "No such option" in copy.refuses("up", "cluster_specs/hello.json", flag_of(name))
        for engine in feature.engines:
            assert engine in copy.refuses("up", "cluster_specs/hello.json", "--on", engine)


def test_hello_runs(copy: Copy) -> None:
    """As it does with the feature."""
    done = copy.tflaunch("up", "cluster_specs/hello.json")
    assert done.returncode == 0, f"without {copy.lacks}: {done.stderr}"
    assert sorted(re.findall(r"^(worker:\d) \| {.cluster", done.stdout, re.MULTILINE)) == ["worker:0", "worker:1"]


def test_an_explanation_recommends_none_of_its_verbs(copy: Copy) -> None:
    """With feature report, that of a failed run recommends `tflaunch report`."""
    assert copy.tflaunch("run", "--", "false").returncode == 1
    if "explain" in copy.features:
        return
    explained = copy.tflaunch("explain", "--json")
    assert explained.returncode == 0, f"without {copy.lacks}: {explained.stderr}"
    recommended = {command.split()[1] for command in json.loads(explained.stdout)["next"]}
    assert "logs" in recommended
    assert not recommended & {verb for feature in copy.features.values() for verb in feature.verbs}


def test_a_spec_that_asks_for_it_is_refused(copy: Copy) -> None:
    """In one sentence, with place and remedy."""
    for field in (field for feature in copy.features.values() for field in feature.fields):
        spec = copy.directory / f"{field}.json"
        asked = {field.partition(":")[0]: SERVED[field]}
        spec.write_text(json.dumps({"cluster": {"worker": 1}, "command": ["true"], **asked}))
        assert copy.refuses("up", str(spec)) == f"tflaunch: {spec}: {field}: {MISSING}"


def test_hosts_that_only_it_reaches_and_code_that_only_it_copies_are_refused(copy: Copy) -> None:
    """In one sentence, before anything starts."""
    boxed = {"cluster": {"worker": ["boxed"]}, "hosts": {"boxed": {"docker": "box"}}}
    kinds = {kind for feature in copy.features.values() for kind in feature.connectors}
    for place, lacks, fields in (
        ("host far.invalid", "ssh" in kinds, {"cluster": {"worker": ["far.invalid"]}}),
        ("host boxed", "command" in kinds, boxed),
        ("sync", any(feature.code for feature in copy.features.values()), {**boxed, "sync": {}}),
    ):
        spec = copy.directory / "job.json"
        spec.write_text(json.dumps({**fields, "command": ["true"]}))
        if lacks:
            assert copy.refuses("up", str(spec)) == f"tflaunch: {place}: {MISSING}"


@pytest.mark.thorough
def test_the_unit_tests_of_the_spine_pass(copy: Copy) -> None:
    if not (LONG or copy.lacks == ALL):
        pytest.skip("takes half a minute: TFLAUNCH_TEST_LONG=1")
    done = copy.run("-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/unit")
    assert done.returncode == 0, f"without {copy.lacks}:\n{done.stdout[-8000:]}{done.stderr}"
