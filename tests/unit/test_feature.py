"""Features are found by looking into folders, and at the entry points of other packages."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fuzz.recorded_run import record
from support.specs import MACHINE, made, planned
from tflaunch.client import observer as current
from tflaunch.clusterspec.load import load_spec
from tflaunch.clusterspec.spec_file import SpecFile
from tflaunch.discovery import prepare
from tflaunch.errors import Problem, SpecError, TflaunchError
from tflaunch.explain.run_status import Status
from tflaunch.feature import Engine, Feature, features, load
from tflaunch.plan.model import HostPlan
from tflaunch.runtime import launch, run_config
from tflaunch.runtime.run_config import SpecOrder
from tflaunch.transport import connect
from tflaunch_worker.feature import RAISE_FAULTS, find_features

DECLARATION = """
from tflaunch.feature import Feature, Verb
FEATURE = Feature(verbs={"greet": Verb("greetings:greet", "Act on runs", "Greet.")})
"""
SHOW = "from tflaunch.cli.main import verbs; print(*verbs())"


def offer(directory: Path, declaration: str) -> subprocess.CompletedProcess[str]:
    """Install a package that offers a feature, and list the commands."""
    (directory / "greetings.py").write_text(declaration)
    about = directory / "tflaunch_greetings-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: tflaunch-greetings\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[tflaunch.features]\ngreetings = greetings:FEATURE\n")
    program = f"import sys; sys.path.insert(0, {str(directory)!r}); {SHOW}"
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)


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


def test_a_feature_of_another_package(tmp_path: Path) -> None:
    done = offer(tmp_path, DECLARATION)
    names = done.stdout.split()
    assert (names.index("greet") > names.index("down"), done.stderr) == (True, "")


def test_a_feature_that_cannot_be_imported_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one sentence; the other commands remain."""
    monkeypatch.delenv(RAISE_FAULTS)
    done = offer(tmp_path, "import nothing_like_this\n" + DECLARATION)
    assert "down" in done.stdout.split()
    assert "greet" not in done.stdout.split()
    assert done.stderr == (
        "tflaunch: warning: the feature greetings has failed and is left out: "
        "ModuleNotFoundError: No module named 'nothing_like_this' (greetings.py, line 1)\n"
    )


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


MISSING = "needs a part of tflaunch that is missing from this installation; remove it, or install all of tflaunch"


def test_a_spec_that_asks_for_a_missing_feature_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = made({"cluster": {"worker": 2}, "command": ["true"], "notify": {"exec": ["true"]}})
    monkeypatch.setattr("tflaunch.feature.features", lambda: {"other": Feature(fields=("notify",))})
    assert prepare.check_spec("spec", Path(), spec) == []
    monkeypatch.setattr("tflaunch.feature.features", lambda: {"other": Feature()})
    with pytest.raises(SpecError) as raised:
        prepare.check_spec("spec", Path(), spec)
    assert [problem.sentence() for problem in raised.value.problems] == [f"notify: {MISSING}"]


def test_a_host_that_only_a_missing_feature_reaches_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one sentence; this machine needs no feature."""
    plan = planned(
        {"cluster": {"worker": ["near", "far"]}, "command": ["true"]}, MACHINE._replace(local_names=frozenset({"near"}))
    )
    monkeypatch.setattr(connect, "features", lambda: {"some": Feature(connectors={"ssh": f"{__name__}:Reaching"})})
    assert connect.connectors_for(plan, tmp_path)["far"] is Reaching.connector
    monkeypatch.setattr(connect, "features", lambda: {"other": Feature()})
    with pytest.raises(TflaunchError, match=f"^host far: {MISSING}$"):
        connect.connectors_for(plan, tmp_path)
    near = plan._replace(hosts=tuple(host for host in plan.hosts if host.host != "far"))
    assert connect.connectors_for(near, tmp_path).keys() == {"near"}


def test_code_for_other_hosts_is_refused_without_the_feature_that_copies_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """In one sentence; where all tasks are on this machine, nothing is copied."""
    far = planned({"cluster": {"worker": ["far"]}, "command": ["true"], "sync": {}})
    monkeypatch.setattr(launch, "features", lambda: {"other": Feature()})
    assert launch.code_for_hosts(far._replace(hosts=())) is None
    with pytest.raises(TflaunchError, match=f"^sync: {MISSING}$"):
        launch.code_for_hosts(far)


class Reaching:
    connector = object()

    def __init__(self, run: str, patience: float) -> None:
        """Take the run's name, and the timeout for reaching a host."""

    def connector_to(self, host: HostPlan, warm: str | None) -> object:
        return self.connector


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
