"""Default spec fields of a user and of a project."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from support.specs import SMALLEST, SMALLEST_LOCAL
from tflaunch.clusterspec import defaults, load
from tflaunch.clusterspec.model import Spec
from tflaunch.errors import Problem, SpecError
from tflaunch.plan import lint

pytestmark = pytest.mark.unit


class Places:
    """A home with a user's file, and a project."""

    def __init__(self, directory: Path) -> None:
        self.user = directory / "home" / ".config" / "tflaunch" / "config.toml"
        self.project = directory / "project" / "tflaunch.toml"
        for path in (self.user, self.project):
            path.parent.mkdir(parents=True)
        self.environ = {"HOME": str(directory / "home")}

    def load(self, *settings: str, environ: dict[str, str] | None = None, **fields: Any) -> Spec:
        """Return a spec of the project."""
        spec = self.project.with_name("job.json")
        spec.write_text(json.dumps({**SMALLEST_LOCAL, **fields}))
        return load.load_spec(spec, settings, environ=self.environ if environ is None else environ)

    def problems(self, **fields: Any) -> tuple[str, tuple[Problem, ...]]:
        """Return the problems and their file."""
        with pytest.raises(SpecError) as caught:
            self.load(**fields)
        return caught.value.source, caught.value.problems


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places(tmp_path)


def test_the_nearer_one_goes_before(places: Places):
    """From lowest to highest precedence: user, project, spec, command line. Variables are expanded once."""
    assert places.load().origins == {}
    places.user.write_text("[env]\nA = '${WHO}'\nB = '$${WHO}'\n")
    assert places.load(environ={**places.environ, "WHO": "${ann}"}).env == {"A": "${ann}", "B": "${WHO}"}
    places.user.write_text("[restart]\nmax = 1\nwindow = '1h'\nbackoff = ['2s', '4s']\n[env]\nA = 'u'\nB = 'u'\n")
    places.project.write_text("[restart]\nmax = 2\nwindow = '2h'\n[env]\nB = 'p'\nC = 'p'\n")
    spec = places.load("env.D=set", restart={"window": "3h"}, env={"C": "s", "D": "s"})
    assert (spec.restart.max, spec.restart.window, spec.restart.backoff) == (2, 10_800.0, (2.0, 4.0))
    assert spec.env == {"A": "u", "B": "p", "C": "s", "D": "set"}
    assert spec.origins == {
        "restart.max": str(places.project),
        "restart.backoff": str(places.user),
        "env.A": str(places.user),
        "env.B": str(places.project),
    }


def test_a_variable_names_another_file_or_none(places: Places, tmp_path: Path):
    places.user.write_text("workdir = 'user'")
    places.project.write_text("workdir = 'project'\n")
    other = tmp_path / "other.toml"
    other.write_text("env = {A = 'other'}")
    spec = places.load(environ={**places.environ, defaults.VARIABLE: str(other)})
    assert (spec.workdir, spec.env) == ("project", {"A": "other"})
    assert places.load(environ={**places.environ, defaults.VARIABLE: ""}).workdir is None
    with pytest.raises(SpecError, match=r"none\.toml"):
        places.load(environ={**places.environ, defaults.VARIABLE: str(tmp_path / "none.toml")})
    (tmp_path / "tflaunch").mkdir()
    (tmp_path / "tflaunch" / "config.toml").write_text("workdir = 'xdg'")
    places.project.unlink()
    assert places.load(environ={**places.environ, "XDG_CONFIG_HOME": str(tmp_path)}).workdir == "xdg"
    assert places.load(environ={**places.environ, "XDG_CONFIG_HOME": "relative"}).workdir == "user", "XDG requires this"


@pytest.mark.parametrize(
    ("text", "where", "words"),
    [
        ("[restart]\nmaximum = 1", "restart.maximum", "did you mean 'max'?"),
        ("[env]\nA = '${NOT_SET}'", "env.A", "is not set"),
        ("name = 'x'", "name", "belongs to one job"),
        ("[cluster]\nworker = 2", "cluster", "belongs to one job"),
        ("a = b", "", "is not valid TOML"),
    ],
)
def test_a_mistake_is_told_with_its_file(places: Places, text: str, where: str, words: str):
    places.project.write_text(text)
    source, (problem,) = places.problems()
    assert (source, problem.where) == (str(places.project), where)
    assert words in problem.sentence()
    places.project.write_text("nmae = 'x'\nworkdri = 'y'\n")
    assert len(places.problems()[1]) == 2, "all mistakes in a file are told at once"
    places.project.chmod(0o666)  # any local user could add a command to every job
    assert places.problems()[1][0].message == "can be written by everybody"


def test_settings_of_roles_and_hosts_hold_where_there_are_such(places: Places):
    """A site describes all its hosts in one file."""
    places.user.write_text("[hosts.h9]\npython = 'p'\n[hosts.'*'.env]\nA = '1'\n[roles.ps.env]\nB = '2'\n")
    smallest: dict[str, Any] = SMALLEST
    spec = places.load(**smallest)
    assert lint.check_spec(spec) == []
    assert spec.roles == {}
    assert spec.host("10.0.0.1").env == {"A": "1"}
    assert places.load(cluster={"chief": 1, "worker": 1, "ps": 1}).roles["ps"].env == {"B": "2"}
