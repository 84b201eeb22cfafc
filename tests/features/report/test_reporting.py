"""`tflaunch report`, as its users see it."""

import re
import subprocess
import tarfile
from pathlib import Path

import pytest

from support.launch import PATIENCE, Launch

SECRET = "correct-horse-battery"
SAY = 'echo "logged in with $HUB_TOKEN at https://ann:$HUB_TOKEN@hub"; exit 3'


@pytest.fixture
def run(launch: Launch) -> str:
    """The name of a run that failed and printed its secret."""
    env = {"HUB_TOKEN": SECRET, "HASHSEED": "plainly-visible"}
    launch.up(launch.shell(SAY, workers=1, name="job.json", env=env, restart={"max": 0}), code=3)
    assert SECRET in launch.log("worker:0")
    return launch.run_directory().name


def unpacked(archive: Path, where: Path) -> dict[str, bytes]:
    """Unpack with the program that users have."""
    where.mkdir()
    subprocess.run(["tar", "-xzf", archive, "-C", where], check=True, timeout=PATIENCE)
    return {str(path.relative_to(where)): path.read_bytes() for path in where.rglob("*") if path.is_file()}


def test_a_report_is_made_here_and_holds_no_secret(launch: Launch, run: str) -> None:
    """What goes in can be seen before it is packed."""
    listed_before = launch.succeed("report", "--logs", "--dry-run")
    assert re.search(r"^logs/worker-0\.log +\d+B  2 secrets replaced$", listed_before.stdout, re.MULTILINE)
    shown = launch.run("report", "--logs", "--show")
    assert "==> logs/worker-0.log <==\nlogged in with *** at https://ann:***@hub\n" in shown.stdout
    assert "    logged in" in shown.stdout  # in the diagnosis
    assert SECRET not in shown.stdout + shown.stderr
    assert listed_before.stdout == shown.stderr
    unasked = launch.run("report", "--show", run)  # programs print secrets in forms that nobody knows
    assert not re.search("^(    )?logged in", unasked.stdout, re.MULTILINE)
    assert "worker:0 exited with code 3" in unasked.stdout
    assert re.search(r"^logs/worker-0\.log +0B  not packed, --logs adds it$", unasked.stderr, re.MULTILINE)
    assert not list(launch.directory.glob("*.tar.gz"))
    ended = launch.run("report", "--logs")
    assert (ended.returncode, ended.stdout) == (0, f"{run}-report.tar.gz\n")
    *lines, warning = ended.stderr.splitlines()
    assert re.fullmatch(r"tflaunch: secrets that were found are replaced; those in other forms, .* --show .*", warning)
    listed = {line.split()[0]: line.split(maxsplit=2)[2:] for line in lines}
    assert listed["logs/worker-0.log"] == ["2 secrets replaced"]
    assert listed["machine.txt"] == []
    files = unpacked(launch.directory / f"{run}-report.tar.gz", launch.directory / "there")
    names = {name.removeprefix(f"{run}-report/") for name in files}
    assert {"spec.json", "plan.json", "events.jsonl", "diagnosis.txt", "machine.txt", "logs/worker-0.log"} <= names
    assert not [name for name, data in files.items() if SECRET.encode() in data]
    assert files[f"{run}-report/logs/worker-0.log"] == b"logged in with *** at https://ann:***@hub\n"
    assert b"worker:0 exited with code 3\n" in files[f"{run}-report/diagnosis.txt"]
    assert b"plainly-visible" in files[f"{run}-report/plan.json"]


def test_where_a_report_goes(launch: Launch, run: str) -> None:
    """It replaces no file that was not named, and can go to stdout; a mistake is one sentence."""
    target = launch.directory / "piped.tar.gz"
    with target.open("wb") as out:
        command = [*launch.prefix, "tflaunch", "report", "-o", "-"]
        subprocess.run(command, cwd=launch.directory, env=launch.env, stdout=out, check=True, timeout=PATIENCE)
    with tarfile.open(target) as archive:
        assert f"{run}-report/plan.json" in archive.getnames()
    assert not list(launch.directory.glob(f"{run}*"))
    assert launch.run("report", run).returncode == 0
    assert (launch.directory / f"{run}-report.tar.gz").stat().st_mode & 0o777 == 0o600
    for words, code, sentence in (
        ([run[:5]], 2, f"{run}-report.tar.gz exists; remove it, or name a file with -o"),
        (["missing"], 2, f"there is no run 'missing'; the runs are {run}"),
        (["-o", "missing/report.tar.gz"], 125, "missing/report.tar.gz: No such file or directory"),
    ):
        refused = launch.run("report", *words)
        assert (refused.returncode, refused.stderr) == (code, f"tflaunch: {sentence}\n")
    named = launch.run("report", "-o", f"{run}-report.tar.gz")
    assert (named.returncode, named.stdout) == (0, f"{run}-report.tar.gz\n")


def test_logs_that_are_kept_elsewhere_are_packed_without_what_stands_beside_them(launch: Launch) -> None:
    """--log-dir may be a directory that the user also uses for other things."""
    (launch.directory / "out").mkdir()
    (launch.directory / "out" / "private.log").write_text("mine")
    launch.up(launch.shell("echo words", workers=1), "--log-dir", "out")
    assert launch.run("report", "--logs", "-o", "report.tar.gz").returncode == 0
    files = unpacked(launch.directory / "report.tar.gz", launch.directory / "there")
    assert [data for name, data in files.items() if "/logs/" in name] == [b"words\n"]
