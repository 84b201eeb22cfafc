"""Fixtures: an environment for each test to run tflaunch in, and hosts; no process may be left running there."""

import os
import signal
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from support.disks import MakeDisk, small_disks
from support.launch import Launch, clean_launch
from support.needs import need, untested
from support.sshd import Keyring, Sshd, StartSshd
from tflaunch_worker import file_trees
from tflaunch_worker.feature import RAISE_FAULTS

os.environ["TFLAUNCH_CONFIG"] = ""  # a developer's own defaults must not affect tests
os.environ[RAISE_FAULTS] = "1"  # a feature that fails is not left out, but fails its test

# A shell starts background jobs with INT and QUIT ignored, nohup ignores HUP; commands under test would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda *_: None)  # ignored here, but not by what is executed

# The duration of an example is meaningless on a shared machine.
settings.register_profile("shared machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared machine")


def pytest_configure(config: pytest.Config) -> None:
    """Name the mark of tests that not every machine can run."""
    config.addinivalue_line("markers", "needs(name, ...): skipped where the machine lacks it (support/needs.py)")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs something that is missing here."""
    marks = [name for mark in item.iter_markers("needs") for name in mark.args]
    need(*marks, *(["tensorflow"] if item.get_closest_marker("tensorflow") else []))


_LEVELS = ("agent", "api", "cli", "docker", "fuzz", "kubernetes", "package", "simulator", "slurm", "ssh", "unit", "web")


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark a test by its directory; elsewhere, one that names no level launches tflaunch ("cli"), or is a unit test."""
    own, marks = item.path.relative_to(Path(__file__).parent).parts[0], {mark.name for mark in item.iter_markers()}
    if own in _LEVELS:
        item.add_marker(own)
    elif marks.isdisjoint({*_LEVELS, "tensorflow"}):
        item.add_marker("cli" if "launch" in getattr(item, "fixturenames", ()) else "unit")


_FAILED = pytest.StashKey[bool]()


def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> None:
    """Note that a test has not passed, for `is_passing`."""
    if call.excinfo is not None:
        item.stash[_FAILED] = True


@pytest.fixture
def is_passing(request: pytest.FixtureRequest) -> Callable[[], bool]:
    """Whether the test has passed so far; if not, its fixtures do not wait for what it has left."""
    return lambda: _FAILED not in request.node.stash


@pytest.hookimpl(wrapper=True, tryfirst=True)  # after all that others say
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Generator[None]:
    """Say at the end what was not tested, and what helps; also to a file for runs of several directories."""
    yield
    reports = [each for each in terminalreporter.stats.get("skipped", []) if isinstance(each.longrepr, tuple)]
    lines = untested(each.longrepr[2] for each in reports)
    if not lines or hasattr(terminalreporter.config, "workerinput"):
        return
    terminalreporter.section("not tested on this machine")
    for line, count in lines:
        terminalreporter.line(f"{count} tests of {line}")
    if file := os.environ.get("TFLAUNCH_TEST_UNTESTED"):
        with open(file, "a", encoding="utf-8") as all_lines:
            all_lines.writelines(f"{line}\n" for line, _ in lines)


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launch]:
    """Run tflaunch in a directory of its own, and check that no process is left after the test."""
    with clean_launch(tmp_path) as place:
        yield place


@pytest.fixture
def deep_path(tmp_path: Path) -> Iterator[Path]:
    """Return a directory that is removed at the end, as pytest itself may fail to remove one that is deep."""
    path = tmp_path / "deep"
    path.mkdir()
    yield path
    assert file_trees.remove_tree(str(path)) is None


@pytest.fixture(scope="session")
def warm_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The directory of warm servers that live as long as these tests."""
    from tflaunch_worker.features.preload import warm_client  # only the tests of a feature need it

    directory = tmp_path_factory.mktemp("warm")
    (directory / warm_client.OWNER_NAME).write_text(str(os.getpid()))
    yield directory
    warm_client.stop_servers(str(directory))


@pytest.fixture
def shared_import(launch: Launch, warm_servers: Path) -> None:
    """Let the tasks of all runs share an import of TensorFlow."""
    launch.share_imports(warm_servers)


@pytest.fixture
def disk() -> Iterator[MakeDisk]:
    """Mount small disks, as root."""
    with small_disks() as mount:
        yield mount


@pytest.fixture(scope="session")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keyring:
    """Key pairs for all tests: generating one takes longer than starting an sshd."""
    need("sshd")
    return Keyring(tmp_path_factory.mktemp("keys"))


@pytest.fixture
def sshd(tmp_path: Path, keys: Keyring, is_passing: Callable[[], bool]) -> Iterator[StartSshd]:
    """Start hosts; at the end of the test no session may have left a process."""
    started: list[Sshd] = []

    def start(name: str = "", **options: Any) -> Sshd:
        count = len(started) + 1
        options.setdefault("address", f"127.0.0.{count + 1}")
        started.append(Sshd(tmp_path / (name or f"h{count}"), keys, **options))
        return started[-1]

    try:
        yield start
        if is_passing():
            left = {host.name: living for host in started if (living := host.wait_empty())}
            assert not left, f"left running: {left}"
    finally:
        for host in started:
            host.stop()
