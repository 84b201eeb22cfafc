"""What cannot be forked from is imported for others once, and remembered until something is installed."""

import json
import os
import sys
import time
from pathlib import Path

import pytest

from support.launch import Launch
from tflaunch_worker.features.preload import refusals

MODULE = """
import os, threading, time
with open(os.environ["IMPORTS"], "a") as file:
    file.write("x")
threading.Thread(target=time.sleep, args=(99,), daemon=True).start()
"""
REASON = "no: importing mine has started a thread, which a fork would lack; leave it out, or run without preload"


@pytest.mark.api
def test_a_later_run_does_not_import_in_vain(launch: Launch) -> None:
    """It says the same reason, until a directory with packages has changed."""
    library, imports = launch.directory / "lib", launch.directory / "imports"
    library.mkdir()
    (library / "mine.py").write_text(MODULE)
    launch.preload = None
    launch.env.update(PYTHONPATH=str(library), IMPORTS=str(imports), PYTHONDONTWRITEBYTECODE="1")
    spec = launch.spec(cluster={"worker": 2}, command=[sys.executable, "-c", "print('x')"], preload=["mine"])
    for count, change in ((1, ""), (1, "installed"), (2, "")):
        launch.succeed("up", spec)
        reasons = {record["preload"] for record in launch.journal() if record["kind"] == "task_started"}
        assert reasons == {REASON}
        assert len(imports.read_text()) == count
        if change:
            (library / change).mkdir()
        (launch.home / "runs").rename(launch.directory / f"runs-{os.urandom(4).hex()}")


@pytest.fixture
def record(tmp_path: Path) -> str:
    """The path of a record, in a directory that does not exist yet."""
    return refusals.record_path(str(tmp_path / "warm"), "0123456789abcdef" * 4)


def test_a_record_holds_while_the_directories_are_the_same(record: str, tmp_path: Path) -> None:
    path = [str(tmp_path / "lib"), str(tmp_path / "missing")]
    Path(path[0]).mkdir()
    refusals.remember(record, "it has a thread", refusals.search_places(path))
    assert refusals.recall(record) == "it has a thread"
    Path(path[1]).mkdir()
    assert refusals.recall(record) == ""
    elsewhere = refusals.record_path(str(Path(record)), "0" * 64)  # where nothing can be written
    refusals.remember(elsewhere, "it has a thread", {})
    assert refusals.recall(elsewhere) == ""


def test_an_old_record_is_ignored_and_removed(record: str) -> None:
    refusals.remember(record, "it has a thread", {})
    yesterday = time.time() - 25 * 3600  # clock: compared with the time of a file
    os.utime(record, (0, yesterday))
    assert refusals.recall(record) == ""
    other = record.replace("0123", "4567")
    refusals.remember(other, "it has another", {})
    assert os.listdir(Path(record).parent) == [Path(other).name]


@pytest.mark.parametrize("text", ["", "{", "[]", "3", '{"reason": "x"}', json.dumps({"reason": "x", "places": 5})])
def test_what_is_no_record_is_ignored(record: str, text: str) -> None:
    Path(record).parent.mkdir()
    Path(record).write_text(text)
    assert refusals.recall(record) == ""
