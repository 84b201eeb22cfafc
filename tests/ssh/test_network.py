"""`tflaunch up` over hosts whose cables can be cut and whose power can fail."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from support import failing_attempts
from support.launch import PATIENCE, Launch, read_errors_until, read_until
from support.netns_hosts import CONTROLLER, Bed, MakeBed
from support.processes import Living

pytestmark = pytest.mark.ssh

LEASE = 9.0
"""A third of it is how long an agent may be silent, even at its start on a busy machine."""
GRACE = 0.5
QUICK = {"lease": LEASE, "grace": GRACE}
UNTIL_KILLED = "trap '' TERM; echo up; sleep 9999 & wait"
COUNTING = "trap '' TERM; i=0; until [ -e {go} ]; do i=$((i+1)); echo line $i; sleep 0.1; done; echo line last"


def shell_on(launch: Launch, hosts: list[str], script: str, **fields: Any) -> Path:
    """Write a spec with one shell task per host."""
    command = ["sh", "-c", script]
    return launch.spec(**{"cluster": {"worker": hosts}, "strategy": "none", "command": command, **fields})


@pytest.mark.parametrize(
    "is_silent", [pytest.param(False, marks=pytest.mark.thorough), True], ids=["no carrier", "black hole"]
)
def test_a_cut_shorter_than_the_lease_costs_nothing(bed: Bed, launch: Launch, is_silent: bool) -> None:
    """The tasks keep running, and no line is lost or duplicated."""
    go = launch.directory / "go"
    spec = shell_on(
        bed.control(launch), ["h1", "h2"], COUNTING.format(go=go), timeouts={"lease": PATIENCE, "heartbeat": 3}
    )
    with bed.watch() as watch:
        running = launch.start("up", spec)
        read_until(running, "line 5\n", 2)
        (bed.blackhole if is_silent else bed.cut)(2)
        read_errors_until(running, "lost the link to h2")
        (bed.unblackhole if is_silent else bed.heal)(2)
        read_errors_until(running, "the link to h2 is restored")
        go.touch()
        _, err = running.communicate(timeout=PATIENCE)
    assert running.returncode == 0, err
    for task in ("worker:0", "worker:1"):
        *lines, last = launch.log(task).splitlines()
        assert (lines, last) == ([f"line {number}" for number in range(1, len(lines) + 1)], "line last")
    assert not watch.clashes()
    assert {one.attempt for sample in watch.samples for one in sample.living} == {0}


@pytest.mark.thorough
def test_a_cut_longer_than_the_lease_loses_the_host(bed: Bed, launch: Launch) -> None:
    """It is the culprit; nothing starts before the fence; it may return, and the job succeeds."""
    spec = shell_on(
        bed.control(launch),
        ["h1", "h2"],
        "[ $TFLAUNCH_ATTEMPT = 1 ] && exit; trap '' TERM; echo up; sleep 9999 & wait",
        timeouts=QUICK,
        restart={"max": 1, "backoff": [0, 0]},
    )
    with bed.watch() as watch:
        running = launch.start("up", spec)
        read_until(running, "up", 2)
        bed.cut(2)
        samples: list[bool] = []

        def are_dead(living: frozenset[Living]) -> bool:
            """In three samples: a process that executes another program has no environment for a moment."""
            samples.append(any(one.host == 2 for one in living))
            return samples[-3:] == [False] * 3

        watch.wait_until(are_dead)
        bed.heal(2)
        _, err = running.communicate(timeout=PATIENCE)
    assert running.returncode == 0, err
    assert "host h2 was lost" in err
    assert not watch.clashes()
    starts = [record for record in launch.journal() if record["kind"] == "start_task"]
    assert [record["attempt"] for record in starts] == [0, 0, 1, 1]
    assert not [sample for sample in watch.samples if {one.attempt for one in sample.living} == {0, 1}]


@pytest.mark.parametrize("failure", [pytest.param("cut", marks=pytest.mark.thorough), "power"])
def test_a_host_that_stays_away_ends_the_job(bed: Bed, launch: Launch, failure: str) -> None:
    """125, it is named, and no process is left anywhere."""
    spec = shell_on(
        bed.control(launch),
        ["h1", "h2"],
        UNTIL_KILLED,
        timeouts={**QUICK, "connect": 20, "lost_host": 15},
        restart={"max": 1, "backoff": [0, 0]},
    )
    running = launch.start("up", spec)
    read_until(running, "up", 2)
    bed.cut(2) if failure == "cut" else bed.power_off(2)
    _, err = running.communicate(timeout=PATIENCE)
    assert running.returncode == 125, err
    assert "host h2 was lost: no message" in err
    assert "waiting for h2 (" in err
    assert any(line.startswith("tflaunch: h2: ") for line in err.splitlines()[-4:]), err
    assert "not reached again within timeouts.lost_host (15 s)" in err
    assert not bed.wait_empty()


@pytest.mark.thorough
def test_a_power_failure_of_the_operator_leaves_nothing(bed: Bed, launch: Launch) -> None:
    """The launcher died without closing its connections: after lease and grace nothing is alive."""
    spec = shell_on(bed.control(launch), ["h1", "h2"], UNTIL_KILLED, timeouts=QUICK)
    running = launch.start("up", spec)
    read_until(running, "up", 2)
    for host in (1, 2):
        bed.blackhole(host)
    running.kill()
    assert not bed.wait_empty()


@pytest.mark.thorough
def test_a_lost_peer_is_named_rather_than_its_victim(bed: Bed, launch: Launch) -> None:
    """A task that fails because it can no longer reach its peer is not the first cause."""
    script = (
        "echo up; if [ $TFLAUNCH_TASK = worker:0 ]; then read go <fifo; exit 1; fi; trap '' TERM; sleep 9999 & wait"
    )
    spec = shell_on(bed.control(launch), ["h1", "h2"], script, timeouts=QUICK, restart={"max": 0})
    bed.execute(1, "mkfifo", launch.directory / "fifo")
    running = launch.start("up", spec)
    read_until(running, "up", 2)
    bed.cut(2)
    read_errors_until(running, "lost the link to h2")
    (launch.directory / "fifo").write_text("go\n")
    _, err = running.communicate(timeout=PATIENCE)
    assert running.returncode == 125, err
    assert any("host h2 was lost" in line for line in err.splitlines()[-4:]), err


@pytest.mark.thorough
def test_ctrl_c_twice_does_not_wait_for_a_host_that_is_cut_off(bed: Bed, launch: Launch) -> None:
    """Its agent stops the tasks by itself."""
    spec = shell_on(
        bed.control(launch),
        ["h1", "h2"],
        UNTIL_KILLED,
        timeouts={"lease": 20, "grace": GRACE, "heartbeat": 3},
    )
    running = launch.start("up", spec)
    read_until(running, "up", 2)
    bed.cut(2)
    read_errors_until(running, "lost the link to h2")
    running.send_signal(signal.SIGINT)
    read_errors_until(running, "ending")
    running.send_signal(signal.SIGINT)
    _, err = running.communicate(timeout=PATIENCE)
    assert running.returncode == 125
    assert "may still run: worker:1 (pid " in err
    assert [process for process in bed.survivors(2) if "TFLAUNCH_TASK" in process.environ], "it waited for them"
    assert not bed.wait_empty()


def test_a_host_that_does_not_know_the_others_is_found_before_the_start(bed: Bed, launch: Launch) -> None:
    """No line at all, or Debian's own 127.0.1.1 line: TensorFlow would wait indefinitely; exit 3."""
    others = "".join(line for line in bed.everybody().splitlines(keepends=True) if not line.endswith(" h1\n"))
    command = ["touch", f"{launch.directory}/started"]
    spec = launch.spec(cluster={"worker": ["h1:2222", "h2:2222"]}, command=command)
    for line, words in (
        ("", "h2 does not know"),
        ("127.0.1.1 h1\n", "on h2 the name 'h1' means 127.0.1.1, which is h2"),
    ):
        bed.etc_hosts[2].write_text(others + line)
        ended = bed.control(launch).up(spec)
        assert ended.returncode == 3
        assert words in ended.stderr
        assert not (launch.directory / "started").exists()
    address = launch.up(spec, "--set", f'hosts.h1.address="{bed.address(1)}"')
    assert address.returncode == 0, address.stderr


def test_hosts_that_cannot_start_an_agent_are_named(make_bed: MakeBed, launch: Launch) -> None:
    """With the location and the remedy, each by a sentence, and the other host starts nothing; exit 3.

    A disk is full, one is read-only, a host is off, which is a black hole, and one has no known name.
    """
    bed = make_bed(5)
    bed.execute(2, "mount", "-o", "remount,size=16k", bed.home)
    bed.execute(2, "sh", "-c", f"cat /dev/zero >{bed.home}/ballast", check=False)
    bed.execute(3, "mount", "-o", "remount,ro", bed.home)
    bed.power_off(4)
    bed.etc_hosts[CONTROLLER].write_text(bed.everybody().replace(f"{bed.address(5)} h5", f"{bed.address(5)} nobody"))
    command = f"touch {launch.directory}/started"
    ended = bed.control(launch).up(
        shell_on(launch, [bed.name(i) for i in bed.hosts], command, timeouts={"connect": 20})
    )
    assert ended.returncode == 3
    sentences = dict(line.removeprefix("tflaunch: ").split(": ", 1) for line in ended.stderr.splitlines())
    assert [*sentences] == ["h2", "h3", "h4", "h5"]
    for name, words in (("h2", "No space left on device"), ("h3", "Read-only file system")):
        assert sentences[name].startswith(str(bed.home))
        assert words in sentences[name]
        assert f"TFLAUNCH_HOME in hosts.{name}.env" in sentences[name]
    assert "within 20 s" in sentences["h4"], "the timeout counts once"
    assert not (launch.directory / "started").exists()


@pytest.mark.thorough
def test_the_first_of_many_that_die_together_is_named_over_cables_of_different_length(bed: Bed, launch: Launch) -> None:
    """Victims' events arrive first: the agents' clocks decide, in seven attempts.

    The victims die late enough for an agent that waits for a busy machine to see its task's exit in time.
    """
    attempts = 8
    bed.delay(2, 200)
    bed.delay(3, 400)
    spec = bed.control(launch).spec(
        cluster={"worker": ["h1", "h2", "h3", "h1"]},
        command=["python3", "-c", failing_attempts.program(launch.directory, 4, attempts, (0.2, 0.3))],
        hosts={name: {"python": sys.executable} for name in ("h1", "h2", "h3")},
        **{**failing_attempts.FIELDS, "timeouts": {"grace": 30, "connect": 30}},
    )
    ended = bed.control(launch).up(spec)
    assert ended.returncode == 0, ended.stderr
    assert failing_attempts.named(launch.run_directory()) == failing_attempts.culprits(4, attempts)
