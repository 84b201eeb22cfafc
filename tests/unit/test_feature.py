"""Features are found by looking into folders; those of other packages are in tests/cli/test_extending.py."""

import json
import os
from pathlib import Path

import pytest

from fuzz.recorded_run import record
from tflaunch.client import observer as current
from tflaunch.clusterspec.load import load_spec
from tflaunch.clusterspec.spec_file import SpecFile
from tflaunch.errors import Problem, SpecError
from tflaunch.explain.run_status import Status
from tflaunch.feature import Engine, Feature, features, load
from tflaunch.runtime import run_config
from tflaunch.runtime.run_config import SpecOrder
from tflaunch_worker.feature import find_features


@pytest.mark.parametrize("feature", features().values(), ids=features())
def test_what_a_feature_declares_is_there(feature: Feature) -> None:
    places = [entry.place for entries in (feature.watchers, feature.verbs.values()) for entry in entries]
    places += [verb.output for verb in feature.verbs.values()] + [place.finder for place in feature.locations]
    places += [feature.hints, feature.columns, feature.code]
    places += [place for option in feature.options.values() for place in (option.read, option.check, option.start)]
    engines = feature.engines.values()
    places += [str(place) for engine in engines for place in engine if ":" in str(place)]
    places += [*feature.discover.values(), *feature.connectors.values(), *feature.task_starters.values()]
    for place in filter(None, places):
        assert load(place) is not None


def test_no_two_features_claim_the_same() -> None:
    for claims in (
        [verb for feature in features().values() for verb in feature.verbs],
        [kind for feature in features().values() for watching in feature.watchers for kind in watching.requests],
        [field for feature in features().values() for field in feature.fields],
        [kind for feature in features().values() for kind in feature.connectors],
    ):
        assert len(claims) == len(set(claims))


def test_a_folder_whose_declaration_is_broken_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its name and its error are reported; the others are there."""
    package = tmp_path / "folders_of_a_test"
    for name, text in {"": "", "bad": "import nothing_like_this", "empty": "", "good": "FEATURE = 7"}.items():
        (package / name).mkdir()
        (package / name / "__init__.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    broken: dict[str, str] = {}
    left = find_features(package.name, lambda name, error: broken.update({name: type(error).__name__}))
    assert (left, broken) == ({"good": 7}, {"bad": "ModuleNotFoundError", "empty": "AttributeError"})


def test_columns_of_feature_are_in_the_status(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TFLAUNCH_HOME", str(tmp_path))
    monkeypatch.setattr(current, "features", lambda: {"some": Feature(columns=f"{__name__}:count")})
    tasks = current.current_status(record(has_ended=True)).tasks
    assert [task.columns for task in tasks] == [{"warnings": float(index)} for index in range(len(tasks))]


def count(directory: Path, status: Status) -> dict[str, dict[str, float]]:
    return {task.task: {"warnings": index} for index, task in enumerate(status.tasks)}


def full(file: SpecFile, order: SpecOrder) -> list[Problem]:
    load_spec(file, order.settings, order.name, order.command, os.environ)
    return [Problem.error("cluster.worker", f"{file.source}: no room for {tuple(order.settings)}", "ask for less")]


@pytest.mark.parametrize(("check", "found"), [("", []), (f"{__name__}:full", ["own.json: no room for ('name=a',)"])])
def test_an_engine_is_asked_about_a_spec(monkeypatch: pytest.MonkeyPatch, check: str, found: list[str]) -> None:
    """If it can tell what it will refuse; what is wrong anywhere is found before."""
    monkeypatch.setattr(run_config, "engines", lambda: {"own": Engine("on hosts of its own", check=check)})
    spec = SpecFile("own.json", Path(), ".json", json.dumps({"cluster": {"worker": 1}, "command": ["true"]}))
    problems = run_config.problems_on("own", spec, ["name=a"], ["echo"])
    assert [problem.message for problem in problems if problem.severity == "error"] == found
    with pytest.raises(SpecError, match=r"restart\.max"):
        run_config.problems_on("own", spec, ["restart.max=-7"], ())
