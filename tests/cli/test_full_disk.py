"""A full disk costs output, never the job; what is lost is reported."""

import contextlib
import re
import resource
import subprocess

import pytest

from support.disks import MakeDisk, missing
from support.launch import PATIENCE, Launch, wait_for_end

LINES = 300_000
TELL = f"seq {LINES}; echo the end"
"""About 2 MB, twice: more than fits on the disk."""
WORDS = "".join(f"{number}\n" for number in range(1, LINES + 1)) + "the end\n"
TASKS = ("worker:0", "worker:1")
ALL_TOLD = " -a ".join(f"-e told-{task}" for task in TASKS)
FAIL_TOGETHER = f"touch told-$TFLAUNCH_TASK; until test {ALL_TOLD}; do sleep 0.05; done; exit 7"
"""The first to exit stops the other, which must have written all its output by then."""


def check_losses(launch: Launch, said: str) -> None:
    """Check that logs state their gaps, and that the total reported at the end matches them."""
    losses = dict(re.findall(r"(worker-\d)\.log: (\d+) bytes could not be written", said))
    assert {task.replace("-", ":"): int(size) for task, size in losses.items()} == {
        task: size for task in TASKS if (size := missing(launch.log(task), WORDS))
    }
    assert losses


def test_up_goes_on_and_says_what_is_lost(launch: Launch, disk: MakeDisk) -> None:
    """Exit 0, everything on stdout, and the logs state their gaps."""
    disk(launch.home)
    ended = launch.succeed("up", launch.shell(TELL, strategy="none"))
    for task in TASKS:
        shown = [line.partition("| ")[2] for line in ended.stdout.splitlines() if line.startswith(task)]
        assert shown == WORDS.splitlines()
    check_losses(launch, ended.stderr)
    assert "records of the journal" not in ended.stderr
    assert launch.journal()[-1]["kind"] == "ended"
    assert not launch.survivors()


def detached(launch: Launch, script: str) -> tuple[str, subprocess.Popen[str]]:
    """Start a detached run whose workers wait for `go` and then run a script; return its name and a follower."""
    script = f"echo up; until test -e go; do sleep 0.05; done; {script}"
    run = launch.detach(launch.shell(script, strategy="none", restart={"max": 0}))
    follower = launch.start("attach", until="| up", count=2)
    return run, follower


def test_wait_knows_the_end_of_a_run_on_a_full_disk(launch: Launch, disk: MakeDisk) -> None:
    """For commands that follow it and for later ones: the job's own code, and what is lost."""
    disk(launch.home)
    _, follower = detached(launch, f"{TELL}; {FAIL_TOGETHER}")
    (launch.directory / "go").touch()
    _, err = follower.communicate(timeout=PATIENCE)
    later = launch.run("wait")
    for code, said in ((follower.returncode, err), (later.returncode, later.stderr)):
        assert (code, "exited with code 7" in said) == (7, True)
        assert re.search(r"log: \d+ bytes could not be written", said)
    assert "bytes could not be written" in (launch.run_directory() / "supervisor.log").read_text()
    assert not launch.survivors()


def test_a_journal_that_cannot_be_written_any_more(launch: Launch) -> None:
    """Followers still get the exit code, and later commands get what is known."""
    run, follower = detached(launch, "exit 7")
    size = (launch.run_directory() / "events.jsonl").stat().st_size
    resource.prlimit(launch.supervisor(without=follower).pid, resource.RLIMIT_FSIZE, (size + 50, size + 50))
    (launch.directory / "go").touch()
    _, err = wait_for_end(follower, 7)
    assert f"{run} has ended with exit code 7" in err
    later = launch.run("wait", code=125)
    assert f"{run} has ended, but the last records of its journal are lost" in later.stderr
    assert not launch.survivors()


def test_a_disk_that_is_full_at_the_start(launch: Launch, disk: MakeDisk) -> None:
    disk(launch.home)
    with contextlib.suppress(OSError), (launch.home / "others").open("wb", buffering=0) as file:
        while file.write(bytes(4096)):
            pass
    said = "No space left on device; free some space there, or set TFLAUNCH_HOME to a directory on another disk"
    for options in ((), ("-d",)):
        ended = launch.run("up", *options, launch.shell("true", workers=1))
        assert (ended.returncode, ended.stderr) == (125, f"tflaunch: {launch.home}: {said}\n")


@pytest.mark.parametrize("files", [6, 18])
def test_a_disk_without_room_for_another_file(launch: Launch, disk: MakeDisk, files: int) -> None:
    """Either nothing starts or the job succeeds; losses are reported with their cause, not a traceback."""
    disk(launch.home, files)
    spec = launch.shell("touch started-$TFLAUNCH_TASK; seq 5", workers=4, strategy="none", restart={"max": 0})
    ended = launch.up(spec)
    said = ended.stderr
    assert "Traceback" not in said
    if ended.returncode:
        assert ended.returncode in (3, 125)  # no agent could start on the host, or tflaunch itself could not
        assert f"{launch.home}/runs/" in said
        assert "No space left on device" in said
        assert not list(launch.directory.glob("started-*"))
        return
    assert ended.stdout.count(" | ") == 4 * 5
    logs = [launch.run_directory() / "logs" / f"worker-{number}.log" for number in range(4)]
    missing = [path for path in logs if f"{path}: 10 bytes could not be written: No space left on device" in said]
    assert [path.read_text() for path in logs if path not in missing] == ["1\n2\n3\n4\n5\n"] * (4 - len(missing))
    assert not any(path.exists() for path in missing)
