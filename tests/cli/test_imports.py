"""What commands import: pydantic takes longer to import than most commands take to run, psutil a tenth of that.

What belongs to a place where a run can live is imported for the runs that live there.
"""

from __future__ import annotations

import sys

import pytest

from support.launch import Launch

pytestmark = pytest.mark.cli

PROGRAM = """
import os, sys
del sys.argv[0]
from tflaunch.cli.main import run_command_line
code = run_command_line()
slow = {"paramiko", "psutil", "pydantic", "pydantic_core", "yaml"}
imported = {name.partition(".")[0] for name in sys.modules} & slow
elsewhere = {
    *("tflaunch.features.slurm.batch", "tflaunch.features.slurm.commands", "tflaunch.features.slurm.location"),
    *("tflaunch.features.kubernetes.kubectl", "tflaunch.features.kubernetes.location"),
    "tflaunch.features.queue.location",
}
imported |= sys.modules.keys() & elsewhere
open("imported", "w").write(" ".join(sorted(imported)))
sys.exit(code)
"""


def imported_by(launch: Launch, *arguments: object) -> tuple[int, str]:
    """Return a command's exit code, and the slow packages and places that it imported."""
    launch.prefix = [sys.executable, "-c", PROGRAM]
    code = launch.run(*arguments).returncode
    launch.prefix = []
    return code, (launch.directory / "imported").read_text()


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Launch:
    """A directory with a run that has ended."""
    place = Launch(tmp_path_factory.mktemp("ended"))
    done = place.up(place.shell("echo hello", workers=1))
    assert done.returncode == 0, done.stderr
    return place


@pytest.mark.parametrize(
    "arguments",
    [
        ["--version"],
        ["ls"],
        ["ps", "--json"],
        ["logs", "--since", "1h30m"],
        ["events"],
        ["wait"],
        ["attach"],
        ["down", "-t", "1m"],
        ["report", "--dry-run"],
        ["prune", "--dry-run", "--keep", "0", "--older-than", "0s"],
    ],
    ids=" ".join,
)
def test_a_command_that_reads_no_spec_imports_none_of_them(ended: Launch, arguments: list[str]):
    """Whether or not the command succeeds; only `report` describes this machine, which psutil knows."""
    code, imported = imported_by(ended, *arguments)
    assert code in (0, 2)
    assert imported == ("psutil" if arguments[0] == "report" else "")


def test_a_live_run_is_watched_and_ended_without_pydantic(launch: Launch):
    launch.detach(launch.shell("echo hello; exec sleep 600", workers=1))
    for verb in ("ps", "down", "wait"):
        assert imported_by(launch, verb)[1] == "", verb


@pytest.mark.parametrize("arguments", [["plan"], ["check"], ["up"]], ids=" ".join)
def test_a_command_that_reads_a_spec_imports_no_more_than_its_format_needs(launch: Launch, arguments: list[str]):
    assert imported_by(launch, *arguments, launch.shell("true", workers=1)) == (0, "pydantic pydantic_core")
