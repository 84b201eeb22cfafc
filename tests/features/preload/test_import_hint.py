"""At the end of a run that was not preloaded, what that would have saved is said, as measured."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from support.launch import Launch
from tflaunch.features.preload.import_hint import ImportTime, describe
from tflaunch_worker import procfs
from tflaunch_worker.features.preload import import_times
from tflaunch_worker.features.preload.import_times import Look

SLOW = "import time; time.sleep(6)"
RUN = "import tensorflow, time; time.sleep(8)"
SETS = "import os; os.environ['TF_NUM_INTEROP_THREADS'] = '1'; "


@pytest.mark.thorough
@pytest.mark.api
def test_the_end_of_a_run_says_what_preloading_would_have_saved(launch: Launch) -> None:
    """Two tasks have imported a package, which took more than three seconds without computing."""
    package = launch.directory / "lib/tensorflow/__init__.py"
    package.parent.mkdir(parents=True)
    package.write_text(SLOW)
    launch.preload = []
    launch.env["PYTHONPATH"] = str(package.parent.parent)
    ended = launch.up(launch.spec(cluster={"worker": 2}, command=[sys.executable, "-c", RUN]))
    assert ended.returncode == 0, ended.stderr
    sentence = (
        r"importing TensorFlow took [\d.]+ s in 2 tasks at once; `--preload` would have saved [\d.]+ s of that, "
        "and saves all of it when tasks are restarted\n"
    )
    assert re.search(sentence, ended.stderr), ended.stderr


@pytest.mark.parametrize(
    ("times", "said"),
    [
        ([], ""),
        ([(9.0, 3.0)], ""),
        ([(2.9, 1.0), (2.8, 1.0)], ""),
        ([(9.0, 3.0), (8.0, 2.0)], "took 9 s in 2 tasks at once; `--preload` would have saved 7 s of that"),
        (
            [(4.0, 3.5), (4.0, 3.4), (4.0, 3.6)],
            "took 4 s in 3 tasks at once; `--preload` would have saved 7.1 s of CPU",
        ),
    ],
    ids=["none", "one task", "fast", "few CPUs", "a CPU for each"],
)
def test_only_what_is_worth_it_is_said(times: list[tuple[float, float]], said: str) -> None:
    """Where each task has a CPU for itself, no time is saved at the start, but CPU time is."""
    sentence = describe(tuple(ImportTime(f"worker:{place}", *each) for place, each in enumerate(times)))
    assert said in sentence
    assert bool(said) == bool(sentence)


def looks(text: str) -> list[Look]:
    """Return looks half a second apart: ``i`` while importing; half of the time is computing."""
    return [Look(place / 2, place / 4, letter == "i") for place, letter in enumerate(text)]


@pytest.mark.parametrize(
    ("text", "has_imported", "span"),
    [
        ("", False, None),
        ("....", False, None),
        (".iii", False, (1.25, 0.625)),
        (".iii.", False, (1.5, 0.75)),
        (".iii..", True, (1.5, 0.75)),
        ("ii.i..", True, (1.75, 0.875)),
    ],
)
def test_the_time_of_an_import(text: str, has_imported: bool, span: tuple[float, float] | None) -> None:
    assert import_times.has_imported(looks(text)) is has_imported
    assert import_times.span(looks(text)) == span


@pytest.mark.parametrize(("program", "reason"), [("import json", ""), (SETS, "TF_NUM_INTEROP_THREADS")])
def test_programs_that_cannot_be_forked(program: str, reason: str) -> None:
    text = f"{program}\nprint(); input()"
    with subprocess.Popen([sys.executable, "-c", text], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        found = import_times.why_not_forked(process.pid)
        process.communicate(b"\n")
    assert (reason in found, bool(reason)) == (True, bool(found))
    assert procfs.cpu_time(process.pid) is None, "it is gone"
    assert import_times.why_not_forked(process.pid) != ""
