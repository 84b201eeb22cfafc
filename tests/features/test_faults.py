"""A feature that fails costs no run: an error is planted into each method by which tflaunch calls one."""

import datetime as dt
import inspect
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from mutants.edits import copy_code
from support.launch import PATIENCE, Launch, read_until, wait_for_end
from tflaunch.client.control_client import ControlClient
from tflaunch.errors import TflaunchError
from tflaunch.feature import features, load
from tflaunch.runtime.watchers import Watcher
from tflaunch_worker.agent.services import Service
from tflaunch_worker.feature import RAISE_FAULTS
from tflaunch_worker.feature import features as features_of_agents

ALWAYS = ("__init__", "begin", "watch", "finish", "tell_end", "close", "follow_up")
"""Moments of each run."""
FIELDS: dict[str, Any] = {
    "collect": ["*.txt"],
    "notify": {"exec": ["true"]},
    "preload": ["json"],
    "retention": {"keep": 3},
    "restart": {"max": 0},
}
"""What makes watchers and services take part that a run without these fields does not have."""
PLANTED = """

def _planted(*_, **__):
    raise IndexError("planted")

{planted} = _planted
"""


class Entry(NamedTuple):
    """A method of a feature, and where its class is.

    ``requests``: the kinds of requests that it answers; ``is_reached``: each run calls it.
    """

    feature: str
    place: str
    method: str
    requests: tuple[str, ...] = ()
    is_reached: bool = False

    @property
    def name(self) -> str:
        return f"{self.place.partition('.')[0]}-{self.feature}-{self.method}"


def overridden(place: str, base: type) -> list[str]:
    """Return the methods of a base that the class at a place has as its own, its making included."""
    own = vars(load(place))
    return [name for name, method in vars(base).items() if inspect.isfunction(method) and name in own]


def entries() -> Iterator[Entry]:
    """Yield the methods of watchers, and those of services in agents."""
    for feature, declared in features().items():
        for watching in declared.watchers:
            for method in overridden(watching.place, Watcher):
                is_reached = watching.wanted_by == "always" and method in ALWAYS
                yield Entry(feature, watching.place, method, watching.requests, is_reached)
    for feature, service in features_of_agents().items():
        for method in [*(overridden(service.service, Service) if service.service else ()), *service.calls]:
            yield Entry(feature, service.service, method)


ENTRIES = {entry.name: entry for entry in entries()}
DRAWN = list(ENTRIES)[dt.date.today().toordinal() % 18 :: 18]  # noqa: DTZ011


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Return the directory of a copy of the code, and its PYTHONPATH."""
    directory = tmp_path_factory.mktemp("faults")
    return directory, copy_code(directory)


@contextmanager
def planted(launch: Launch, copied: tuple[Path, str], entry: Entry) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Plant an error into an entry in the copy; yield what starts `tflaunch up` from there."""
    module, _, name = entry.place.partition(":")
    side = "worker" if module.startswith("tflaunch_worker") else "launcher"
    path = copied[0] / side / f"{module.replace('.', '/')}.py"
    sound = path.read_text()
    del launch.env[RAISE_FAULTS]
    launch.env["PYTHONPATH"] = copied[1]

    def start(*arguments: object) -> subprocess.Popen[str]:
        launch.started.append(
            subprocess.Popen(
                [sys.executable, "-m", "tflaunch", "up", *map(str, arguments)],
                cwd=launch.directory, env=launch.env, stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )
        )  # fmt: skip
        return launch.started[-1]

    path.write_text(sound + PLANTED.format(planted=f"{name}.{entry.method}"))
    try:
        yield start
    finally:
        path.write_text(sound)


@pytest.mark.parametrize("name", [pytest.param(e, marks=[] if e in DRAWN else pytest.mark.thorough) for e in ENTRIES])
def test_a_run_ends_as_it_would_without_the_feature(launch: Launch, copied: tuple[Path, str], name: str) -> None:
    """What it has been asked for is refused with the reason; who watches the run is told once at most."""
    entry = ENTRIES[name]
    spec = launch.shell("echo up; until test -e go; do sleep 0.05; done; echo done > left.txt; echo end", **FIELDS)
    with planted(launch, copied, entry) as start:
        running = start(spec, "--metrics-port", "0")
        read_until(running, "| up")
        for kind in entry.requests:
            with suppress(TflaunchError):
                ControlClient(launch.run_directory()).ask(kind)
        if entry.method == "answer":
            with pytest.raises(TflaunchError, match=r"the feature \w+ has failed and is left out: IndexError: planted"):
                ControlClient(launch.run_directory()).ask(entry.requests[0])
        (launch.directory / "go").touch()
        out, err = wait_for_end(running)
    assert out.count("| end") == 2, out
    assert err.count("IndexError: planted") in ((1,) if entry.is_reached else (0, 1)), err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        ("tflaunch-checkpoints-__init__", 3, "cannot be put on localhost: the feature checkpoints has failed: Index"),
        ("tflaunch_worker-checkpoints-find_checkpoint", 0, "was not copied: its agent refused: IndexError: planted"),
    ],
)
def test_a_job_waits_for_no_checkpoint_of_a_feature_that_has_failed(
    launch: Launch, copied: tuple[Path, str], name: str, code: int, words: str
) -> None:
    """A start that needs the supervisor's half is refused; without the agent's half nothing is found there."""
    spec = launch.shell("echo end", checkpoints={"dir": "state"}, restart={"max": 0})
    with planted(launch, copied, ENTRIES[name]) as start:
        running = start(spec)
        _, err = running.communicate(timeout=PATIENCE)
    assert (running.returncode, words in err) == (code, True), err
