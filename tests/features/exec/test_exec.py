"""`tflaunch exec`: commands on the host of a task, from a terminal and through pipes."""

import hashlib
import os
import signal
import subprocess
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from support.launch import PATIENCE, Launch
from support.specs import TFLAUNCH
from support.terminals import Terminal
from support.waiting import wait_gone

COUNTS = "i=0; while [ ! -e enough ]; do i=$((i+1)); echo line $i; sleep 0.05; done"
STUBBORN = 'trap "" TERM HUP; echo $$; while :; do sleep 0.1; done'
ESCAPED = f"(setsid sh -c '{STUBBORN}' &)"
"""A process in another session, whose parent is dead."""

BARE = f"(setsid env -i sh -c '{STUBBORN}' &)"
"""The same without an environment, by which it could be known."""


def begin(launch: Launch, script: str = COUNTS, workers: int = 2, **fields: Any) -> None:
    about = {"strategy": "none", "timeouts": {"grace": 0.3, "lease": 600}}
    launch.succeed("up", "-d", launch.shell(script, workers, **{**about, **fields}))
    for number in range(workers):
        launch.wait_for_log(f"worker:{number}", "\n")


def start(launch: Launch, *arguments: str, task: str = "worker:0") -> subprocess.Popen[bytes]:
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    words = [str(TFLAUNCH), "exec", task, "--", *arguments]
    process: Any = subprocess.Popen(words, cwd=launch.directory, env=launch.env, **pipes)
    launch.started.append(process)
    return process


def execute(launch: Launch, *arguments: str, given: bytes = b"", task: str = "worker:0") -> tuple[int, bytes, str]:
    """Return exit code, output and errors of a command with this input."""
    process = start(launch, *arguments, task=task)
    out, err = process.communicate(given, PATIENCE)
    return process.returncode, out, err.decode()


def read_pid(process: subprocess.Popen[bytes]) -> int:
    return int(process.stdout.readline())


@pytest.fixture
def running(launch: Launch) -> Iterator[Launch]:
    """A run with one worker, which ends well after the test."""
    begin(launch, workers=1)
    yield launch
    (launch.directory / "enough").touch()
    launch.succeed("wait")


def test_a_command_has_what_the_task_has(launch: Launch) -> None:
    """All hosts run it once: lines begin with the host's name, and the first failure is the exit code."""
    launch.env["KEY_OF_ANN"] = "hush"
    secrets = {"API_KEY": {"env": "KEY_OF_ANN"}}
    begin(launch, strategy="multi_worker_mirrored", secrets=secrets, env={"GIVEN": "by the spec"})
    tell = (
        'echo "$TFLAUNCH_TASK $TFLAUNCH_ATTEMPT $GIVEN $API_KEY"; pwd; echo "$TF_CONFIG"; echo "<$TFLAUNCH_PROGRESS>"'
    )
    code, out, err = execute(launch, "sh", "-c", f"{tell}; echo oops >&2; exit 7", task="worker:1")
    assert (code, err) == (7, "oops\n")
    first, where, config, progress = out.decode().splitlines()
    assert (first, where, progress) == ("worker:1 0 by the spec hush", str(launch.directory.resolve()), "<>")
    assert '"task":{"type":"worker","index":1}' in config
    done = launch.run("exec", "--all", "--", "sh", "-c", "cat; echo here; printf there >&2; exit 5")
    assert (done.returncode, done.stdout) == (5, "localhost | here\n")
    assert done.stderr == "localhost | there\ntflaunch: localhost: exit code 5\n"
    launch.succeed("exec", "host=localhost", "--", "true")
    for words, sentence in (
        (["worker-0", "true"], "a COMMAND goes after `--`: tflaunch exec worker:0 -- true"),
        (["--all", "worker:0", "--", "true"], "--all is for all hosts, so that worker:0 is not expected here"),
        (["worker:2"], "no task is 'worker:2'; the tasks are worker:0, worker:1"),
    ):
        refused = launch.run("exec", *words)
        assert (refused.returncode, sentence in refused.stderr) == (2, True), refused.stderr
    (launch.directory / "enough").touch()
    launch.succeed("wait")
    assert "hush" not in (launch.run_directory() / "events.jsonl").read_text()


def test_ends_are_those_of_a_shell_and_pipes_are_exact(running: Launch) -> None:
    """128 + N for a signal; what cannot be executed is one sentence."""
    assert execute(running, "sh", "-c", "kill -9 $$") == (137, b"", "")
    assert execute(running, "nothing") == (127, b"", "tflaunch: command not found: 'nothing'\n")
    place = running.directory / "text"
    place.touch()
    refused = f"tflaunch: command '{place}' cannot be executed: Permission denied\n"
    assert execute(running, str(place)) == (126, b"", refused)
    data = os.urandom(20 * 1024 * 1024)
    code, out, err = execute(running, "cat", given=data)
    assert (code, hashlib.sha256(out).digest(), err) == (0, hashlib.sha256(data).digest(), "")
    process = start(running, "sh", "-c", "cat >&2; echo done")
    out, errors = process.communicate(data[:1_000_000], PATIENCE)
    assert (process.returncode, out, errors) == (0, b"done\n", data[:1_000_000])
    assert execute(running, "true", given=data)[0] == 0  # which reads none of it
    shell = subprocess.run(
        [str(TFLAUNCH), "exec", "worker:0"],
        input=b"echo $((40 + 2)); exit 4", cwd=running.directory, env=running.env, capture_output=True, check=False,
    )  # fmt: skip
    assert (shell.returncode, shell.stdout) == (4, b"42\n")


@pytest.mark.thorough
def test_a_slow_reader_delays_nobody(running: Launch) -> None:
    agent = psutil.Process(running.status()["tasks"][0]["pid"]).parent()
    involved = [agent, running.supervisor()]
    before = [process.memory_info().rss for process in involved]
    slow = start(running, "sh", "-c", "head -c 64000000 /dev/zero; touch written; cat")
    os.read(slow.stdout.fileno(), 1)
    lines = running.log("worker:0").count("\n")
    running.wait_for_log("worker:0", f"line {lines + 20}\n")
    assert max(process.memory_info().rss - rss for process, rss in zip(involved, before, strict=True)) < 16e6
    assert not (running.directory / "written").exists()
    out, _ = slow.communicate(b"end", PATIENCE)
    assert len(out) == 64_000_000 - 1 + len(b"end")
    assert out.endswith(b"\0end")


def test_a_command_ends_with_who_has_started_it(running: Launch) -> None:
    ways = {signal.SIGKILL: -signal.SIGKILL, signal.SIGINT: 130, signal.SIGTERM: 143}
    started = {number: start(running, "sh", "-c", f"{ESCAPED}; {BARE}; {STUBBORN}") for number in ways}
    pids = [read_pid(process) for process in started.values() for _ in range(3)]
    for number, process in started.items():
        process.send_signal(number)
        assert process.wait(PATIENCE) == ways[number]
    for pid in pids:
        wait_gone(pid)
    # What it leaves behind gets a moment, as what a task leaves behind.
    late = "(while kill -0 $$; do sleep 0.02; done 2>/dev/null; echo late) & read enough"
    process = start(running, "sh", "-c", f"{BARE}; sleep 9999 & echo $!; {late}")
    pids = [read_pid(process), read_pid(process)]
    assert process.communicate(b"\n", PATIENCE)[0] == b"late\n"
    assert process.returncode == 0
    for pid in pids:
        wait_gone(pid)


def test_a_command_does_not_count_as_the_task(launch: Launch) -> None:
    begin(launch, workers=1)
    process = start(launch, "sh", "-c", f"{ESCAPED}; exec cat")
    pid = read_pid(process)
    launch.succeed("restart")
    launch.wait_for_log("worker:0", "line 1\n", 2)
    assert psutil.pid_exists(pid)
    assert execute(launch, "sh", "-c", "echo $TFLAUNCH_ATTEMPT") == (0, b"1\n", "")
    process.stdin.write(b"still here\n")
    process.stdin.flush()
    assert process.stdout.readline() == b"still here\n"
    (launch.directory / "enough").touch()
    ended = launch.run("wait")
    assert (ended.returncode, "still ran" in ended.stderr) == (0, False), ended.stderr
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 143, err
    assert err.decode() == f"tflaunch: run {launch.run_directory().name} has ended, and the command with it\n"
    wait_gone(pid)
    late = execute(launch, "true")
    assert late[0] == 2
    assert "has ended with exit code 0; exec needs a live run, and `tflaunch logs " in late[2]


def test_a_command_ends_with_its_agent(launch: Launch) -> None:
    begin(launch, workers=1)
    process = start(launch, "sh", "-c", f"{ESCAPED}; {BARE}; {STUBBORN}")
    pids = [read_pid(process) for _ in range(3)]
    agent = psutil.Process(launch.status()["tasks"][0]["pid"]).parent()
    agent.kill()
    for pid in pids:
        wait_gone(pid)
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode in (125, 143), err
    assert err.startswith(b"tflaunch: ")
    assert err.count(b"\n") == 1, err
    launch.run("down")


KEEP = "stty -g >before; {}; echo code $?; stty -g >after; cmp before after && echo same"


def test_a_terminal_is_one_on_the_host(launch: Launch) -> None:
    """With its size, keys and jobs; afterwards it is as it was."""
    launch.env |= {"SHELL": "/bin/sh", "PS1": "there$ "}
    begin(launch, workers=1)
    launch.env["TERM"] = "vt220"
    terminal = Terminal(launch, KEEP.format("tflaunch exec worker:0"), b"there$ ")
    for columns, rows in ((100, 30), (120, 40)):
        terminal.resize(columns, rows)
        wait = b"until [ \"$(stty size)\" = '%d %d' ]; do sleep 0.05; done; echo got''it\n" % (rows, columns)
        terminal.type(wait, b"gotit")
    terminal.type(b"sh -c 'echo $TERM $TFLAUNCH_TASK; exec sleep 9999'\n", b"vt220 worker:0")
    terminal.type(b"\x03", b"there$ ")
    terminal.type(b"cat\n")
    terminal.type(b"is it up?\n", b"is it up?\r\nis it up?")
    assert "Stopped" in terminal.type(b"\x1a", b"there$ ")
    terminal.type(b"fg\n", b"fg\r\ncat")
    terminal.type(b"again\n", b"again\r\nagain")
    terminal.type(b"\x04", b"there$ ")
    terminal.type(b"stty -echo; exit 9\n")
    shown, _ = terminal.read_to_end()
    assert "code 9\r\nsame\r\n" in shown
    (launch.directory / "enough").touch()
    launch.succeed("wait")
