"""Packages add features: that of docs/extending.md works, one that fails costs no run, and one finds hosts."""

import json
from pathlib import Path
from typing import Any

import pytest

from mutants.edits import copy_code
from support.documents import blocks, run_block, shell_of
from support.launch import PATIENCE, Launch, wait_for_end
from support.releases import install
from support.specs import REPOSITORY
from tflaunch_worker.feature import RAISE_FAULTS

PAGE = REPOSITORY / "docs" / "extending.md"
PROJECT = """
[project]
name = "tflaunch-{name}"
version = "1.0"

[project.entry-points."tflaunch.features"]
{name} = "tflaunch_{name}:FEATURE"
"""


def install_feature(launch: Launch, name: str, declared: str, **modules: str) -> None:
    """Install a package that declares a feature."""
    files = {f"tflaunch_{name}.py": declared, **{f"{module}.py": text for module, text in modules.items()}}
    install(launch, {**files, "pyproject.toml": PROJECT.format(name=name)})


def test_the_package_of_the_page_works(launch: Launch) -> None:
    page = list(blocks(PAGE))
    install(launch, {block.file: block.text for block in page if block.file and "/" not in block.file})
    commands, _ = (block for block in page if block.kind == "console")
    run_block(commands._replace(mark=""), lambda *_: None, shell_of(launch))


def test_the_folders_of_the_page_work(launch: Launch, tmp_path: Path) -> None:
    """On both sides, beside the features that are there."""
    launch.env["PYTHONPATH"] = copy_code(tmp_path)
    page = list(blocks(PAGE))
    for block in page:
        if "/" in block.file:
            (tmp_path / block.file).parent.mkdir(exist_ok=True)
            (tmp_path / block.file).write_text(block.text)
    _, commands = (block for block in page if block.kind == "console")
    run_block(commands._replace(mark=""), lambda *_: None, shell_of(launch))


BROKEN = """
from tflaunch.feature import ALWAYS, Feature, Watching
from tflaunch.runtime.watchers import Watcher

class Broken(Watcher):
    def {moment}(self, *about):
        raise KeyError("lost")

def columns(directory, status):
    raise KeyError("lost")

WATCHING = Watching("tflaunch_broken:Broken", ALWAYS, ("broken",))
FEATURE = Feature(columns="tflaunch_broken:columns", watchers=(WATCHING,))
"""


@pytest.mark.parametrize("moment", ["__init__", "watch", "finish"])
def test_a_package_that_fails_costs_no_run(launch: Launch, moment: str) -> None:
    del launch.env[RAISE_FAULTS]
    install_feature(launch, "broken", BROKEN.format(moment=moment))
    ended = launch.run("up", launch.shell("exit 7", workers=1, strategy="none", restart={"max": 0}))
    told = [line for line in ended.stderr.splitlines() if "tflaunch_broken" in line]
    sentence = "tflaunch: warning: the feature broken has failed and is left out: KeyError: 'lost' ("
    goes_on = f"tflaunch_broken.py, line 7); run {launch.run_directory().name} goes on without it"
    assert (ended.returncode, told) == (7, [sentence + goes_on]), ended.stderr
    recorded = [record["feature"] for record in launch.records("feature_failed")]
    assert recorded == ["broken"]
    shown = launch.run("ps")
    assert (shown.returncode, shown.stderr) == (0, f"{sentence}tflaunch_broken.py, line 10)\n")


def test_a_package_that_cannot_be_imported_is_left_out(launch: Launch) -> None:
    """With one sentence; the other commands remain."""
    del launch.env[RAISE_FAULTS]
    install_feature(launch, "broken", "import nothing_like_this\n")
    shown = launch.succeed("help")
    assert "\n  down " in shown.stdout
    assert shown.stderr == (
        "tflaunch: warning: the feature broken has failed and is left out: "
        "ModuleNotFoundError: No module named 'nothing_like_this' (tflaunch_broken.py, line 1)\n"
    )


DECLARED = """
from tflaunch.feature import Feature

FEATURE = Feature(discover={"boxes": "boxes_engine:Boxes"})
"""
BOXES = '''
from tflaunch.discovery.base import Engine, Found, NotFoundError

class Boxes(Engine):
    """Directories that are homes of hosts on this machine."""

    holds = {holds}

    def find(self, where, directory):
        boxes = sorted(path.name for path in (directory / where).glob("box*"))
        if not boxes:
            raise NotFoundError(f"{{where}} has no box", "build one")
        return Found(boxes, str(directory / where))

    def words(self, host, handle):
        return ["env", f"HOME={{handle}}/{{host}}"]
'''


@pytest.fixture(params=[False, pytest.param(True, marks=pytest.mark.thorough)], ids=["leaves agents", "holds them"])
def boxes(launch: Launch, tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """Install the package, and make two boxes."""
    install_feature(launch, "boxes", DECLARED, boxes_engine=BOXES.format(holds=request.param))
    house = tmp_path / "house"
    for name in ("box1", "box2"):
        (house / name).mkdir(parents=True)
    return house


def spec(launch: Launch, script: str, **fields: object) -> Path:
    """Write a spec with a worker in each box."""
    about: dict[str, Any] = {"hosts": {"discover": "boxes:house"}, "cluster": {"worker": 2}, "strategy": "none"}
    return launch.spec(**{**about, "command": ["sh", "-c", script], "workdir": str(launch.directory), **fields})


def test_tasks_run_there(launch: Launch, boxes: Path) -> None:
    """With the host's own home; and nothing is left behind."""
    ended = launch.succeed("up", spec(launch, "echo at $HOME"))
    assert f"at {boxes}/box1" in ended.stdout
    assert f"at {boxes}/box2" in ended.stdout
    plan = json.loads((launch.run_directory() / "plan.json").read_text())
    assert [host["engine"] for host in plan["hosts"]] == [f"boxes:{boxes}"] * 2


def test_another_supervisor_finds_them(launch: Launch, boxes: Path) -> None:
    """After the first was killed; the tasks do not notice."""
    script = "touch $TFLAUNCH_TASK.up; until [ -e go ]; do sleep 0.05; done; echo went"
    up = launch.start("up", spec(launch, f"echo up; {script}", timeouts={"lease": PATIENCE}), until="up", count=2)
    up.kill()
    up.communicate()
    resumed = launch.start("up", "--resume", launch.run_directory().name, "-d")
    _, err = wait_for_end(resumed)
    (launch.directory / "go").touch()
    launch.succeed("wait")
    out = launch.run("logs").stdout
    assert out.count("went") == 2
    assert "attempt 1" not in err


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ("boxes:nosuch", "hosts.discover: nosuch has no box; build one"),
        ("doors:house", "there is no engine 'doors'; use one of boxes, dns, exec, file, slurm"),
    ],
)
def test_what_is_wrong_is_said(launch: Launch, boxes: Path, where: str, words: str) -> None:
    path = spec(launch, "true", hosts={"discover": where})
    for verb in ("up", "plan"):
        ended = launch.run(verb, path, code=2)
        assert words in ended.stderr, ended.stderr
        assert "Traceback" not in ended.stderr


def test_a_package_whose_engine_cannot_be_used_is_named(launch: Launch) -> None:
    """With what to mend."""
    del launch.env[RAISE_FAULTS]
    install_feature(launch, "boxes", DECLARED, boxes_engine="import nosuchmodule\n")
    ended = launch.run("check", spec(launch, "true"), code=2)
    words = "cannot be imported: No module named 'nosuchmodule'; mend boxes_engine:Boxes"
    assert words in ended.stdout + ended.stderr
