"""Checks docs/compatibility.md: each feature is tried with tf_keras and, in `make nightly`, with Keras 3.

The programs are in programs/keras. A cell is `works`, `fails:` with part of the exception in quotes, or `no:` with
what happens instead, without an exception.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.launch import LONG, Launch
from support.specs import REPOSITORY
from support.warm_python import StartWarm, WarmPython

pytestmark = [pytest.mark.tensorflow, pytest.mark.thorough]

PAGE = REPOSITORY / "docs" / "compatibility.md"
PROGRAMS = Path(__file__).parent / "programs" / "keras"
KERASES = ("tf_keras", "Keras 3")
CLUSTERS = {"two_workers.py": {"worker": 2}, "servers.py": {"chief": 1, "worker": 1, "ps": 1}}
ALONE = json.dumps({"cluster": {"worker": ["localhost:0"]}, "task": {"type": "worker", "index": 0}})

Outcomes = dict[str, str]


def rows() -> dict[str, dict[str, str]]:
    lines = iter(PAGE.read_text().splitlines())
    heads = next(cells(line)[1:] for line in lines if line.startswith("| feature |"))
    found: dict[str, dict[str, str]] = {}
    for line in lines:
        if not line.startswith("|"):
            break
        if not line.startswith("|---"):
            feature, *outcomes = cells(line)
            found[feature] = dict(zip(heads, outcomes, strict=True))
    return found


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def said(text: str) -> list[tuple[str, str]]:
    """Return what a task printed about features."""
    return [(name, outcome) for name, outcome in map(json.loads, re.findall(r"^feature (.+)$", text, re.MULTILINE))]


def together(launch: Launch, program: str, keras: str) -> Outcomes:
    """Run one of the programs as a cluster; a failure in one task is a failure."""
    spec = launch.spec(
        cluster=CLUSTERS[program],
        command=["python", str(PROGRAMS / program)],
        env={"TF_CPP_MIN_LOG_LEVEL": "2"},
        legacy_keras=keras == "tf_keras",
        restart={"max": 0},
    )
    launch.succeed("up", spec)
    pairs = [pair for log in (launch.run_directory() / "logs").glob("*.log") for pair in said(log.read_text())]
    return dict(sorted(pairs, key=lambda pair: pair[1] != "works"))  # of two entries the later one stays


def alone(directory: Path, python: WarmPython) -> Outcomes:
    """Run the program of a single process, which tflaunch does not start."""
    program = str(PROGRAMS / "alone.py")
    text = f"import runpy, sys; sys.path.insert(0, {str(PROGRAMS)!r}); runpy.run_path({program!r}, None, '__main__')"
    ended = python.run(text, [program], env={**python.env, "TF_CONFIG": ALONE, "TMPDIR": str(directory)})
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return dict(said(ended.stdout))


@pytest.fixture(scope="module", params=KERASES if LONG else KERASES[:1])
def tried(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, warm_servers: Path, warm_python: StartWarm
) -> Iterator[tuple[str, Outcomes]]:
    """Run all programs with a Keras version, once, and return the result of each feature."""
    launches = [Launch(tmp_path_factory.mktemp(Path(program).stem)) for program in CLUSTERS]
    for launch in launches:
        launch.share_imports(warm_servers)
    try:
        python = warm_python("1" if request.param == "tf_keras" else "0")
        found = alone(tmp_path_factory.mktemp("alone"), python)
        for launch, program in zip(launches, CLUSTERS, strict=True):
            found |= together(launch, program, request.param)
        yield request.param, found
    finally:
        for launch in launches:
            launch.end()


def test_every_feature_has_its_row(tried: tuple[str, Outcomes]) -> None:
    _, found = tried
    assert found.keys() == rows().keys()


@pytest.mark.parametrize("feature", rows())
def test_the_table_is_true(tried: tuple[str, Outcomes], feature: str) -> None:
    keras, found = tried
    kind, _, words = rows()[feature][keras].partition(": ")
    assert kind in ("works", "fails", "no")
    assert found[feature].partition(": ")[0] == kind, found[feature]
    assert words.strip("`") in found[feature]
