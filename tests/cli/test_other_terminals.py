"""A run controlled from other terminals: -d, ps, ls, logs, attach, wait, down, restart, kill, events."""

import json
import os
import re
import signal
import socket
import subprocess
from typing import Any

import psutil
import pytest

from support.launch import PATIENCE, Launch, read_until, wait_for_end
from support.specs import TFLAUNCH
from support.terminals import Terminal
from support.waiting import wait_gone, wait_until

UNTIL_GO = "echo up $TFLAUNCH_TASK $TFLAUNCH_ATTEMPT; until test -e go; do sleep 0.05; done; echo done; "
QUICK = {"lease": PATIENCE, "grace": 0.3}


def detached(launch: Launch, script: str, *arguments: object, **fields: Any) -> str:
    """Start a detached run whose workers run a shell script, and return its name."""
    fields = {"strategy": "none", "timeouts": QUICK, **fields}
    return launch.detach(launch.shell(script, **fields), *arguments)


def test_a_detached_run_outlives_its_terminal(launch: Launch) -> None:
    """The terminal hangs up and its session is killed; `wait` elsewhere returns the job's exit code."""
    spec = launch.shell(UNTIL_GO + "exit 7", strategy="none", restart={"max": 0})
    terminal = Terminal(launch, f"{TFLAUNCH} up -d {spec}; echo ready; sleep 9999", b"ready")
    terminal.hang_up()
    waiting = launch.start("wait")
    (launch.directory / "go").touch()
    _, err = wait_for_end(waiting, 7)
    assert "exited with code 7" in err


def test_up_d_tells_what_kept_it_from_beginning(launch: Launch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        started = launch.run("up", "-d", launch.shell("true"), "--metrics-port", port)
    assert started.returncode == 3
    holder = rf"pid {os.getpid()} \(.+\)"
    assert re.fullmatch(rf"tflaunch: --metrics-port {port} is held by {holder}; choose another port\n", started.stderr)
    assert not list(launch.home.glob("runs/*"))


def test_ps_shows_what_the_contract_says(launch: Launch) -> None:
    """Every field, measured, with the progress that a task reports."""
    script = 'echo \'{"step": 7, "metrics": {"loss": 0.5}}\' > $TFLAUNCH_PROGRESS; ' + UNTIL_GO
    run = detached(launch, script, workers=1)
    launch.wait_for_log("worker:0", "up")

    def measured() -> dict[str, Any] | None:
        """Return the status once the task is measured: it is old enough, and its agent has answered in time."""
        current = launch.status(run)
        return current if current["tasks"][0]["cpu_percent"] is not None else None

    current = wait_until(measured)
    (task,) = current["tasks"]
    assert {"run", "name", "phase", "attempt", "exit_code", "culprit", "tasks"} <= current.keys()
    shown = [current[name] for name in ("state", "name", "exit_code", "culprit")]
    assert shown == ["running", "job", None, None]
    assert (current["trains"], current["phase"], current["next_commands"]) == ("yes", "training", [])
    assert psutil.Process(task["pid"]).environ()["TFLAUNCH_TASK"] == "worker:0"
    assert task["rss_bytes"] > 0
    assert task["cpu_percent"] >= 0
    assert abs(task["since"] - psutil.Process(task["pid"]).create_time()) < 30
    assert re.fullmatch(r"localhost:\d+", task["address"])
    assert (task["step"], task["metrics"], task["last_line"]) == (7, {"loss": 0.5}, "up worker:0 0")
    assert (task["exit_code"], task["signal"], task["attempt"], task["host"]) == (None, None, 0, "localhost")
    table = launch.run("ps").stdout
    assert ("worker:0" in table, "\033" in table) == (True, False)
    (launch.directory / "go").touch()
    launch.run("wait")
    ended = launch.status()
    assert (ended["phase"], ended["exit_code"], ended["tasks"][0]["state"]) == ("ended", 0, "succeeded")
    assert (ended["state"], ended["tasks"][0]["step"], ended["tasks"][0]["metrics"]) == ("succeeded", 7, {"loss": 0.5})


def test_ps_asks_the_agents_when_the_supervisor_is_dead(launch: Launch) -> None:
    """Agents report what is alive, rather than the journal; querying changes nothing."""
    run = detached(launch, UNTIL_GO)
    first, second = (task["pid"] for task in launch.status()["tasks"])
    for process in (launch.supervisor(), psutil.Process(second)):
        process.kill()
        process.wait(PATIENCE)
    current = launch.status()
    assert current["supervisor"] == "dead"
    assert [(task["state"], task["pid"]) for task in current["tasks"]] == [("running", first), ("stopped", None)]
    assert 0 < current["hosts"][0]["lease_left"] <= PATIENCE
    assert "lost" in launch.run("ls").stdout
    waited = launch.run("wait", code=125)
    assert re.search(f"its tasks live on for .*: tflaunch up --resume {run}", waited.stderr)
    psutil.Process(first).kill()
    wait_gone(first)
    assert f"was killed, and its tasks have ended: tflaunch up --resume {run}" in launch.run("wait").stderr
    launch.succeed("down")
    assert not launch.survivors()


def test_down_ends_a_run_and_can_be_repeated(launch: Launch) -> None:
    """With TERM and the requested grace; 0 even if nothing runs; `wait` gets 143."""
    launch.succeed("down")
    detached(launch, "trap 'echo saved; exit 0' TERM; echo up; while :; do sleep 0.05; done", workers=1)
    launch.wait_for_log("worker:0", "up")
    waiting = launch.start("wait")
    ended = launch.run("down", "-t", "20s")
    assert (ended.returncode, ended.stderr) == (0, f"tflaunch: stopped {launch.run_directory().name}\n")
    wait_for_end(waiting, 143)
    assert "saved" in launch.log("worker:0")
    assert not launch.survivors()
    again = launch.run("down")
    assert (again.returncode, "has ended with exit code 143" in again.stderr) == (0, True)


def test_down_all_ends_every_run(launch: Launch) -> None:
    """Live ones and those whose supervisor was killed; -t 0 kills at once what ignores TERM."""
    detached(launch, UNTIL_GO)
    launch.kill_supervisor()
    detached(launch, UNTIL_GO)
    detached(launch, "trap '' TERM; echo up; while :; do sleep 0.05; done", timeouts={"grace": 2 * PATIENCE})
    refused = launch.run("down", code=2)
    assert "several runs are live" in refused.stderr
    launch.succeed("down", "--all", "-t", 0)
    assert not launch.survivors()
    listed = json.loads(launch.run("ls", "--json").stdout)
    assert [entry["state"] for entry in listed] == ["stopped"] * 3
    assert all(entry["started"] < entry["ended"] for entry in listed)


def test_restart_starts_the_gang_anew_for_free_and_kill_sends_a_signal(launch: Launch) -> None:
    """With the next attempt, and without a charge; a sidecar alone gets a new process, and no other task does.

    A signal is sent to the given tasks; the restart rules decide what follows.
    """
    script = "trap 'echo got USR1' USR1; " + UNTIL_GO
    detached(launch, script, restart={"max": 0}, sidecars={"board": {"command": ["sleep", "9999"]}})

    def pids() -> dict[str, int]:
        return {task["task"]: task["pid"] for task in launch.status()["tasks"]}

    before = pids()
    restarted = launch.succeed("restart")
    note = "they go on from the checkpoints that they save, if any"
    assert re.fullmatch(rf"tflaunch: restarting all tasks that train of job-\S+; {note}\n", restarted.stderr)
    launch.wait_for_log("worker:1", "up worker:1 1")
    gang = pids()
    assert [task for task, pid in gang.items() if pid == before[task]] == ["board"]
    restarted = launch.run("restart", "board")
    assert (restarted.returncode, "restarting board of job-" in restarted.stderr) == (0, True)
    wait_until(lambda: len(launch.records("task_started", task="board")) == 2)
    assert [task for task, pid in pids().items() if pid != gang[task]] == ["board"]
    sent = launch.succeed("kill", "-s", "USR1", "worker:1")
    assert "sent SIGUSR1 to worker:1 of job-" in sent.stderr
    launch.wait_for_log("worker:1", "got USR1")
    assert "USR1" not in launch.log("worker:0")
    (launch.directory / "go").touch()
    launch.succeed("wait")


def test_ps_names_a_server_that_has_ended_while_the_chief_trains(launch: Launch) -> None:
    """Without -a, unlike a task that is done; the job would hang without a word."""
    script = "[ $TFLAUNCH_TASK = ps:0 ] || sleep 600"
    detached(launch, script, cluster={"chief": 1, "worker": 1, "ps": 1}, strategy="parameter_server")
    wait_until(lambda: launch.records("task_gone", task="ps:0"))
    shown = launch.run("ps")
    assert re.search(r"^ps:0 +succeeded", shown.stdout, re.MULTILINE)
    sentence = "ps:0 ended with code 0, though the job still needs it; end the program of a server"
    assert sentence in shown.stderr
    assert sentence in launch.run("explain").stdout
    launch.succeed("down", "-t", "0")


def test_names_that_other_tools_have_lead_to_the_command(launch: Launch) -> None:
    """And a home without runs says so instead of showing an empty table. More are in mistakes.yaml."""
    assert launch.run("help").stdout == launch.run("--help").stdout
    assert launch.run("help", "down").stdout == launch.run("down", "--help").stdout
    empty = launch.run("ls")
    assert (empty.stdout, empty.stderr) == ("", f"tflaunch: no runs in {launch.home}/runs\n")
    assert launch.run("ls", "--json").stdout == "[]\n"


def test_mistakes_are_told_in_a_sentence(launch: Launch) -> None:
    """Unknown runs, tasks and attempts; a run that has ended. Those without a run are in mistakes.yaml."""
    detached(launch, UNTIL_GO)
    for arguments, words in (
        (["ps", "nosuch"], "there is no run 'nosuch'"),
        (["logs", "worker:9"], "no task is 'worker:9'; the tasks are worker:0, worker:1"),
        (["ps", "worker:1"], "'worker:1' is a task, not a run; the runs are"),
        (["logs", "--attempt", "7"], "has no attempt 7; its only attempt is 0"),
        (["restart", "host=nosuch"], "no task is 'host=nosuch'"),
    ):
        refused = launch.run(*arguments)
        assert refused.returncode == 2, arguments
        assert words in refused.stderr
        assert "Traceback" not in refused.stderr
    (launch.directory / "go").touch()
    launch.run("wait")
    late = launch.run("restart", code=2)
    assert "has ended with exit code 0; `tflaunch rerun " in late.stderr


def test_what_follows_a_run_shows_all_of_it_and_ends_with_it(launch: Launch) -> None:
    """`attach`, which Ctrl-C ends without the run, `logs -f`, `events -f` and `ps --watch`."""
    lines = [f"line {number}" for number in range(1, 301)]
    run = detached(launch, f"{UNTIL_GO}seq -f 'line %g' {len(lines)}; exit 4", restart={"max": 0})
    leaving = launch.start("attach", until="up worker:1 0")
    leaving.send_signal(signal.SIGINT)
    _, err = leaving.communicate(timeout=PATIENCE)
    assert (leaving.returncode, f"{run} is still running" in err) == (130, True)
    options = {"attach": (), "logs": ("-f",), "events": ("-f", "--json"), "ps": ("--watch",)}
    followers = {verb: launch.start(verb, *options[verb]) for verb in options}
    for follower, words in zip(followers.values(), ("up worker:0", "up worker:1", "task_st", "worker:1"), strict=True):
        read_until(follower, words)
    (launch.directory / "go").touch()
    shown = {verb: follower.communicate(timeout=PATIENCE) for verb, follower in followers.items()}
    assert [follower.returncode for follower in followers.values()] == [4, 0, 0, 0], shown
    assert "exited with code 4" in shown["attach"][1]
    assert "failed" in shown["ps"][0]
    assert json.loads(shown["events"][0].splitlines()[-1]) == launch.journal()[-1]
    assert launch.journal()[-1]["kind"] == "ended"
    exited = r"^\d\d:\d\d:\d\d\.\d{3} task_exited host=localhost task=worker:"
    assert re.search(exited, launch.run("events").stdout, re.MULTILINE)
    culprit = launch.status()["culprit"]
    for out in (shown["attach"][0], shown["logs"][0]):
        mine = [line.partition("| ")[2] for line in out.splitlines() if line.startswith(culprit)]
        assert mine[-300:] == lines
    assert launch.run("logs", culprit, "--tail", 2).stdout == "line 299\nline 300\n"
    assert launch.run("logs", "--since", "2h", culprit, "-n", 1).stdout == "line 300\n"
    assert launch.run("logs", "--since", "2000-01-01", "--attempt", 5).stdout == ""


def test_attach_offers_to_take_over(launch: Launch) -> None:
    """Without a terminal to prompt on it says how; with --resume it does so."""
    run = detached(launch, UNTIL_GO)
    launch.kill_supervisor()
    refused = launch.run("attach", code=125)
    assert f"tflaunch up --resume {run}" in refused.stderr
    (launch.directory / "go").touch()
    launch.succeed("attach", "--resume")
    assert launch.run("logs", "--fold", "--tail", 1).stdout == "worker:0-1 | done\n"


@pytest.mark.thorough
def test_stopped_readers_block_nobody(launch: Launch) -> None:
    """Ctrl-S: readers of a chatty run stop reading; the run ends on time, and its logs are complete."""
    count = 20_000
    detached(launch, UNTIL_GO + f"seq {count}")
    readers = [launch.start("logs", "-f"), launch.start("attach"), launch.start("ps", "--watch")]
    for reader in readers[:2]:
        read_until(reader, "up worker:1")
    for reader in readers:
        reader.send_signal(signal.SIGSTOP)
    (launch.directory / "go").touch()
    launch.succeed("wait")
    for task in ("worker:0", "worker:1"):
        assert launch.log(task).splitlines()[-count:] == [str(number) for number in range(1, count + 1)]
    for reader in readers:
        reader.kill()
        reader.communicate(timeout=PATIENCE)


@pytest.mark.thorough
def test_a_stopped_supervisor_is_named(launch: Launch) -> None:
    run = detached(launch, UNTIL_GO)
    supervisor = launch.supervisor()
    supervisor.suspend()
    asked = launch.run("ps")
    remedy = f"kill -CONT {supervisor.pid}"
    assert asked.stderr.startswith(f"tflaunch: the supervisor of {run} has not answered for ")
    assert asked.stderr.endswith(f"; try again, or `{remedy}` if it was stopped\n")
    subprocess.run(remedy, shell=True, check=True)
    assert launch.status(run)["state"] == "running"
    (launch.directory / "go").touch()
    launch.succeed("wait")


def test_a_second_supervisor_fences_the_first(launch: Launch) -> None:
    """If the lock fails (it is removed here), the agents obey the newer one; the older does nothing more."""
    run = detached(launch, UNTIL_GO)
    pids = [task["pid"] for task in launch.status()["tasks"]]
    wait_until(lambda: "up" in launch.log("worker:0"))
    old = launch.supervisor()
    old.suspend()
    (launch.run_directory() / "lock").unlink()
    launch.succeed("up", "--resume", run, "-d")
    old.resume()
    old.wait(PATIENCE)
    assert "another tflaunch has taken over run" in (launch.run_directory() / "supervisor.log").read_text()
    assert [task["pid"] for task in launch.status()["tasks"]] == pids
    (launch.directory / "go").touch()
    launch.succeed("wait")
    assert launch.log("worker:0") == "up worker:0 0\ndone\n"


def test_metrics_are_served_on_loopback(launch: Launch) -> None:
    from urllib.request import urlopen

    running = launch.start("up", launch.shell(UNTIL_GO, strategy="none"), "--metrics-port", 0)
    url = running.stderr.readline().split()[-1]
    read_until(running, "up", 2)
    text = urlopen(url, timeout=PATIENCE).read().decode()
    run = launch.run_directory().name
    assert re.search(rf'^tflaunch_supervisor_cpu_seconds_total\{{run="{run}"\}} 0\.\d+$', text, re.MULTILINE)
    assert f'tflaunch_job_phase{{phase="running",run="{run}"}} 1.0' in text
    assert f'tflaunch_task_up{{host="localhost",run="{run}",task="worker:1"}} 1.0' in text
    assert url.startswith("http://127.0.0.1:")
    (launch.directory / "go").touch()
    wait_for_end(running)


def test_run_needs_no_file(launch: Launch) -> None:
    saved = launch.run("run", "-n", 3, "-H", "a,b", "--ps", 1, "--chief", "--save", "--", "python", "-m", "pkg.train")
    cluster = {"chief": ["a"], "worker": ["a", "a", "b"], "ps": ["a"]}
    assert json.loads(saved.stdout) == {"name": "pkg", "cluster": cluster, "command": ["python", "-m", "pkg.train"]}
    launch.run("run", "-n", 2, "--save", "saved.json", "--", "sh", "-c", "exit 5")
    assert launch.up(launch.directory / "saved.json", "--set", "restart.max=0").returncode == 5


def test_bash_completes_runs_and_tasks(launch: Launch) -> None:
    launch.up(launch.shell("true", workers=1))
    run = launch.run_directory().name
    for line, expected in (
        ("tflaunch up --re", {"--resume"}),
        ("tflaunch ps jo", {run}),
        ("tflaunch logs work", {"worker", "worker:0"}),
    ):
        done = launch.paste(f"""
            eval "$(tflaunch completion bash)"
            COMP_WORDS=({line}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); COMP_LINE="{line}"; COMP_POINT=${{#COMP_LINE}}
            _tflaunch_completion tflaunch; echo "${{COMPREPLY[@]}}"
        """)
        assert set(done.stdout.split()) == expected, done.stderr


def test_a_log_that_another_program_has_moved_is_said(launch: Launch) -> None:
    """As logrotate does; the exit code tells it to a script."""
    assert launch.up(launch.shell("echo one; sleep 0.1; echo two", strategy="none")).returncode == 0
    moved, emptied = (launch.run_directory() / "logs" / f"worker-{number}.log" for number in range(2))
    moved.rename(moved.with_suffix(".1"))
    shown = launch.run("logs")
    assert (shown.returncode, "worker:1 | two" in shown.stdout) == (125, True)
    assert f"{moved} was moved or cut by another program" in shown.stderr
    emptied.write_text("")
    assert f"{emptied} was moved or cut by another program" in launch.run("logs", "worker:1").stderr
