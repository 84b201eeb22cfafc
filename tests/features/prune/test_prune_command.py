"""`prune`, through the installed command, on runs that it has made itself."""

import json
import signal
from pathlib import Path

from support.disks import MakeDisk
from support.launch import PATIENCE, Launch
from support.terminals import Terminal
from tflaunch.errors import EXIT_USAGE
from tflaunch.features.prune import agent_caches

KEPT = "the newest 10 runs of a job stay (--keep), and those of the last 7 d (--older-than)"

AT_ONCE = ("--keep", "0", "--older-than", "0s")


def ended(launch: Launch, count: int = 1, *arguments: object) -> list[Path]:
    """Make runs, and return their directories, the oldest first."""
    spec, found = launch.shell("echo trained", workers=1), []
    for _ in range(count):
        before = directories(launch)
        assert launch.up(spec, *arguments).returncode == 0
        (path,) = directories(launch) - before
        found.append(path)
    return found


def directories(launch: Launch) -> set[Path]:
    """Return the directories of all runs."""
    runs = launch.home / "runs"
    return {path for path in runs.iterdir() if path.is_dir()} if runs.exists() else set()


def test_old_runs_are_listed_and_then_removed(launch: Launch) -> None:
    """The same ones, with sizes; the newest stay, and so do those that ended recently."""
    paths = ended(launch, 3)
    nothing = launch.run("prune", "--yes")
    assert (nothing.returncode, nothing.stdout) == (0, f"nothing to remove: {KEPT}\n")
    listed = launch.succeed("prune", "--keep", 1, "--older-than", "0s", "--dry-run")
    *lines, total = listed.stdout.splitlines()
    assert {line.split()[2] for line in lines} == {path.name for path in paths[:2]}
    assert all(" succeeded " in line for line in lines)
    assert total.endswith(" would be freed")
    assert directories(launch) == set(paths)
    removed = launch.run("prune", "--keep", 1, "--older-than", "0s", "-y")
    assert (removed.returncode, removed.stderr) == (0, "")
    assert removed.stdout.count("removed ") == 2
    assert removed.stdout.splitlines()[-1] == total.replace("would be ", "")
    assert directories(launch) == {paths[2]}
    assert json.loads(launch.run("ls", "--json").stdout)[0]["run"] == paths[2].name


def test_json_has_what_the_lines_say(launch: Launch) -> None:
    (path,) = ended(launch, 1, "--log-dir", launch.directory / "mine")
    shown = [json.loads(launch.run("prune", *AT_ONCE, *how, "--json").stdout) for how in (["--dry-run"], ["--yes"])]
    for told, is_dry in zip(shown, (True, False), strict=True):
        (run,) = told["removed"]
        assert (run["run"], run["state"]) == (path.name, "succeeded")
        assert run["logs_kept"] == str(launch.directory / "mine")
        assert told["freed"] == run["size"] > 0
        assert (told["dry_run"], told["kept"], told["failures"]) == (is_dry, [], [])
        assert told["caches"] == {kind: {"count": 0, "size": 0} for kind in agent_caches.KINDS}
    assert not path.exists()
    assert (launch.directory / "mine" / "worker-0.log").read_text() == "trained\n"


def test_a_file_system_in_a_run_is_not_entered(launch: Launch, disk: MakeDisk) -> None:
    path, sound = ended(launch, 2)
    mounted = disk(path / "code")
    (mounted / "mine").touch()
    said = launch.succeed("prune", *AT_ONCE, "--yes").stdout
    assert f"kept {path.name}, which cannot be removed: a file system is mounted at {mounted}; unmount it" in said
    assert (mounted / "mine").exists()
    assert (path / "events.jsonl").exists()
    assert not sound.exists()


def test_on_a_terminal_it_asks(launch: Launch) -> None:
    """After it has listed what would go; only yes removes, neither wrong use nor an interrupt does."""
    (path,) = ended(launch)
    for arguments, message in (
        ([], "stdin is not a terminal, so there is no one to ask: add --yes, or --dry-run to only list"),
        (["--keep", "-1", "-y"], "is not a whole number from 0 on"),
    ):
        refused = launch.run("prune", *arguments)
        assert (refused.returncode, message in refused.stderr) == (EXIT_USAGE, True), refused.stderr
    for answer, code in ((b"\n", 0), (b"\x03", 128 + signal.SIGINT), (b"y\n", 0)):
        assert (path / "events.jsonl").exists()
        terminal = Terminal(launch, f"exec tflaunch prune {' '.join(AT_ONCE)}")
        assert path.name in terminal.read_until(b"[y/N]: ")
        if code == 0:
            terminal.type(answer)
        said, exit_code = terminal.read_to_end(b"" if code == 0 else answer)
        assert exit_code == code
        assert said.splitlines()[-1].endswith("freed" if b"y" in answer else "tflaunch: nothing was removed")
    assert not path.exists()


def test_the_end_of_a_run_removes_old_ones_of_its_job(launch: Launch) -> None:
    """Those beyond `retention`; none of another job, and no live one. It may have nothing to say."""
    running = launch.start("up", launch.shell("echo up; exec sleep 9999", workers=1), until="up")
    (live,) = directories(launch)
    others = ended(launch, 2, "--name", "other")
    earlier = ended(launch, 3)
    settings = ("--set", "retention.keep=2", "--set", "retention.older_than=1ms")
    last = launch.succeed("up", launch.shell("echo trained", workers=1), *settings)
    assert "removed 2 old runs of " in last.stderr
    (newest,) = directories(launch) - {live, *others, *earlier}
    assert directories(launch) == {live, *others, earlier[-1], newest}
    again = launch.up(launch.shell("echo trained", workers=1), "--set", "retention.keep=3")
    assert "removed" not in again.stderr
    running.send_signal(signal.SIGINT)
    running.communicate(timeout=PATIENCE)
