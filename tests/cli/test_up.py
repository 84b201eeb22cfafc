"""`tflaunch up`, as its users see it: output, exit codes, and nothing left behind."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path, PurePath
from typing import Any

import psutil
import pytest

from support import failing_attempts
from support.launch import LONG, PATIENCE, Launch, read_until
from support.limits import check_with_limits
from support.processes import is_agent
from support.specs import TFLAUNCH
from tflaunch.clusterspec import load
from tflaunch.core import event_records, replay, step
from tflaunch.core.annotations import Annotation
from tflaunch.core.job_state import Phase
from tflaunch.discovery import local_machine
from tflaunch.plan import planner
from tflaunch_worker.features.debug import in_tasks

pytestmark = pytest.mark.cli

PRINT_CONFIG = ["python3", "-c", "import os; print(os.environ['TF_CONFIG'])"]
SLEEP = "echo up; exec sleep 300"


def test_the_smallest_local_spec_runs(launch: Launch) -> None:
    """Both tasks print their TF_CONFIG, prefixed, on stdout; the logs hold the same bytes."""
    ended = launch.up(launch.spec(cluster={"worker": 2}, command=PRINT_CONFIG))
    assert ended.returncode == 0
    lines = dict(line.split(" | ", 1) for line in ended.stdout.splitlines())
    assert set(lines) == {"worker:0", "worker:1"}
    config = json.loads(lines["worker:1"])
    assert config["task"] == {"type": "worker", "index": 1}
    assert len(set(config["cluster"]["worker"])) == 2
    assert launch.log("worker:1") == lines["worker:1"] + "\n"
    begin, end = ended.stderr.splitlines()
    assert begin == f"tflaunch: run {launch.run_directory().name}: 2 tasks, logs in {launch.run_directory()}/logs"
    assert re.fullmatch(r"tflaunch: done: 2 tasks in \d+\.\d s", end)


def test_a_program_in_the_background_is_no_success(launch: Launch) -> None:
    """It says what still ran and what helps, is not retried, and is no success for any command."""
    command = ["sh", "-c", "nohup sleep 300 > /dev/null 2>&1 &"]
    ended = launch.up(launch.spec(cluster={"worker": 2}, strategy="none", command=command))
    assert ended.returncode == 1
    about = r"worker:\d ended with 0 while its process \d+ \(sleep 300\) still ran in the background"
    assert re.search(about, ended.stderr)
    assert "hint: let the command stay in the foreground" in ended.stderr
    assert "restart" not in ended.stderr
    kinds = [(record["kind"], record.get("attempt")) for record in launch.journal()]
    assert {attempt for kind, attempt in kinds if kind == "start_task"} == {0}


def test_a_sidecar_in_the_background_has_failed_but_not_the_job(launch: Launch) -> None:
    """What the job does not need is named, and the job goes on."""
    board = {"command": ["sh", "-c", "sleep 300 &"]}
    ended = launch.up(launch.spec(cluster={"worker": 1}, command=["sleep", "4"], sidecars={"board": board}))
    assert ended.returncode == 0
    about = r"board ended with 0 while its process \d+ \(sleep 300\) still ran .*; the job goes on"
    assert re.search(about, ended.stderr)


def test_a_spec_is_read_from_a_pipe_and_a_long_line_is_shown_whole(launch: Launch) -> None:
    """`up <(jq …)` and `up /dev/stdin`; a record of JSON is not torn on the way."""
    spec = launch.shell("head -c 1000000 /dev/zero | tr '\\0' x; echo", workers=1)
    for words in (f"{TFLAUNCH} up -q <(cat {spec})", f"{TFLAUNCH} up -q /dev/stdin < {spec}"):
        ended = subprocess.run(
            ["bash", "-c", words], env=launch.env, cwd=launch.directory, capture_output=True, text=True, check=False
        )
        assert (ended.returncode, ended.stderr) == (0, "")
        assert ended.stdout == f"worker:0 | {'x' * 1_000_000}\n"


def test_the_run_directory_is_private_and_complete(launch: Launch) -> None:
    """plan.json, events.jsonl with the plan first, a log per task; other users have no access."""
    launch.up(launch.spec(cluster={"worker": 1}, command=["true"]))
    directory = launch.run_directory()
    assert directory.stat().st_mode & 0o077 == 0
    journal = launch.journal()
    assert journal[0]["kind"] == "plan"
    assert journal[0]["plan"] == json.loads((directory / "plan.json").read_text())
    assert [record["seq"] for record in journal] == list(range(len(journal)))
    assert (directory / "logs" / "worker-0.log").exists()


@pytest.mark.parametrize(("script", "code"), [("exit 7", 7), ("kill -9 $$", 137), ("kill -11 $$", 139)])
def test_the_culprits_end_is_the_exit_code(launch: Launch, script: str, code: int) -> None:
    """The other tasks are stopped, and the culprit is named with its last output."""
    script = f"if [ $TFLAUNCH_TASK = worker:1 ]; then echo last words; {script}; fi; {SLEEP}"
    ended = launch.up(launch.shell(script, workers=3, restart={"max": 0}))
    assert ended.returncode == code
    assert "tflaunch: worker:1 " in ended.stderr
    assert "    last words" in ended.stderr


@pytest.mark.parametrize("_", range(20 if LONG else 4))
def test_the_first_cause_is_named_when_victims_follow_closely(launch: Launch, _: int) -> None:
    """Victims that die 10 ms after the culprit are not mistaken for it."""
    culprit = "if [ $TFLAUNCH_TASK = worker:1 ]; then echo $$ > fault; exit 7; fi"
    is_dead = 'while read -r state < /proc/$pid/stat; do case $state in *") Z "*) break;; esac; done 2>/dev/null'
    script = f"{culprit}; read -r pid < fault; {is_dead}; sleep 0.01; exit 8"
    os.mkfifo(launch.directory / "fault")
    ended = launch.up(launch.shell(script, workers=2))
    assert ended.returncode == 7
    assert "worker:1 exited with code 7" in ended.stderr


def test_where_tflaunch_is_installed_tasks_import_from_the_usual_places(launch: Launch) -> None:
    """A directory of tflaunch could hide modules such as `inspect`; the one for `breakpoint()` has one module."""
    ended = launch.up(launch.shell("echo PYTHONPATH=$PYTHONPATH.", strategy="none", env={"PYTHONPATH": "/mine"}))
    assert ended.returncode == 0, ended.stderr
    (modules,) = in_tasks.__path__
    assert ended.stdout.count(f"PYTHONPATH=/mine:{modules}.") == 2
    assert {path.stem for path in Path(modules).glob("*.py")} == {"__init__", "tflaunch_breakpoint"}


def test_a_command_that_does_not_exist_is_one_sentence(launch: Launch) -> None:
    """127, as in a shell, and a hint."""
    ended = launch.up(launch.spec(cluster={"worker": 2}, command=["no-such-program"]))
    assert ended.returncode == 127
    sentence, hint = ended.stderr.splitlines()
    assert sentence.endswith(" did not start on localhost: command not found: 'no-such-program'")
    assert hint.startswith("tflaunch: hint: install it, or write its full path")


def test_a_failing_start_is_not_retried(launch: Launch) -> None:
    """A plain error before the cluster has formed would recur."""
    ended = launch.up(launch.spec(cluster={"worker": 1}, command=["python3", "-c", "import nonsense"]))
    assert ended.returncode == 1
    assert "not restarted" in ended.stderr
    assert len([record for record in launch.journal() if record["kind"] == "start_task"]) == 1


def test_a_killed_task_is_restarted_with_its_gang(launch: Launch) -> None:
    """A SIGKILL in attempt 0 leads to attempt 1 of both; the log shows both attempts."""
    crash = "if [ $TFLAUNCH_TASK = worker:1 ]; then read -r up < up; kill -9 $$; fi"
    script = f"echo attempt $TFLAUNCH_ATTEMPT; [ $TFLAUNCH_ATTEMPT = 1 ] && exit; {crash}; echo > up; exec sleep 300"
    os.mkfifo(launch.directory / "up")
    ended = launch.up(launch.shell(script, restart={"max": 1, "backoff": [0, 0]}))
    assert ended.returncode == 0, ended.stderr
    assert launch.log("worker:0") == "attempt 0\n---- tflaunch: worker:0 attempt 1 ----\nattempt 1\n"
    assert "done: 2 tasks, after 1 restart" in ended.stderr
    assert ended.stderr.count("logs in") == 1


def test_the_last_lines_are_those_of_the_last_attempt(launch: Launch) -> None:
    """Output of earlier attempts is in the log."""
    script = "echo output of $TFLAUNCH_ATTEMPT; kill -9 $$"
    ended = launch.up(launch.shell(script, workers=1, restart={"max": 1, "backoff": [0, 0]}))
    assert ended.returncode == 137
    assert "    output of 1\n" in ended.stderr
    assert "    output of 0\n" not in ended.stderr


def test_more_tasks_than_files_may_be_open(launch: Launch) -> None:
    """A low soft limit is raised for tflaunch itself, and is unchanged for the tasks."""
    spec = launch.shell("ulimit -Sn", workers=80)
    command = ["sh", "-c", f"ulimit -Sn 64; exec {TFLAUNCH} up {spec}"]
    ended = subprocess.run(command, cwd=launch.directory, env=launch.env, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert {line.split(" | ")[1] for line in ended.stdout.splitlines()} == {"64"}


def test_ctrl_c_ends_cleanly(launch: Launch) -> None:
    """TERM and the grace for the tasks, 130 for the shell."""
    script = f"trap 'echo saving; exit 0' TERM; {SLEEP[:-14]} sleep 300 & wait"
    running = launch.start("up", launch.shell(script, timeouts={"grace": 100}))
    read_until(running, "up", 2)
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=PATIENCE)
    assert running.returncode == 130
    assert out.count("saving") == 2
    assert "interrupted by Ctrl-C" in err


PRESS_CTRL_C = """
import os, signal, sys, weakref

class Finder:
    def find_spec(name, path=None, target=None):
        if name == os.environ["PRESS_CTRL_C_AT"]:
            if "IN_CALLBACK" in os.environ:
                weakref.finalize(Finder(), os.kill, os.getpid(), signal.SIGINT)
            else:
                os.kill(os.getpid(), int(os.environ.get("SIGNAL", signal.SIGINT)))

sys.meta_path.insert(0, Finder)
"""
"""Interrupts a process when it begins to import a module, or in a callback at that time, where Python ignores it."""


def interrupt_at(launch: Launch, module: str, *options: str, code: int = 130, **environment: str) -> None:
    """Press Ctrl-C, or send another signal, when `up` imports a module."""
    (launch.directory / "sitecustomize.py").write_text(PRESS_CTRL_C)
    spec, before = launch.shell("sleep 300"), launch.env
    launch.env = {**before, "PYTHONPATH": str(launch.directory), "PRESS_CTRL_C_AT": module, **environment}
    interrupted = launch.up(spec, *options)
    launch.env = before
    assert interrupted.returncode == code, interrupted.stderr
    assert "Traceback" not in interrupted.stderr


@pytest.mark.parametrize(
    ("module", "options", "states"),
    [
        ("tflaunch.cli.main", [], []),
        ("tflaunch.runtime.wiring", [], []),
        ("tflaunch.runtime.wiring", ["-d"], []),
        ("tflaunch.tui.screen", [], ["interrupted"]),
        ("tflaunch.features.records.run_record", ["-d"], ["interrupted"]),
    ],
)
def test_ctrl_c_while_a_run_begins(launch: Launch, module: str, options: list[str], states: list[str]) -> None:
    """No traceback, no directory of a run without a journal, and no run that goes on."""
    interrupt_at(launch, module, *options)
    assert [run["state"] for run in json.loads(launch.run("ls", "--json").stdout)] == states
    assert len(list(launch.home.glob("runs/*"))) == len(states)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
@pytest.mark.parametrize(
    ("module", "options"),
    [
        ("tflaunch.runtime.launch", []),
        ("tflaunch.runtime.wiring", []),
        ("tflaunch.tui.screen", []),
        ("tflaunch.features.records.run_record", ["-d"]),
    ],
)
def test_term_while_a_run_begins(launch: Launch, module: str, options: list[str], number: int) -> None:
    """It is as Ctrl-C, but for the exit code."""
    interrupt_at(launch, module, *options, code=128 + number, SIGNAL=str(int(number)))
    assert {run["state"] for run in json.loads(launch.run("ls", "--json").stdout)} <= {"interrupted"}
    assert not launch.survivors()


@pytest.mark.parametrize("module", ["tflaunch.cli.main", "tflaunch.runtime.wiring"])
def test_a_ctrl_c_that_python_ignores_is_repeated(launch: Launch, module: str) -> None:
    """Before it is decided what to run, and later."""
    interrupt_at(launch, module, IN_CALLBACK="1")
    assert {run["state"] for run in json.loads(launch.run("ls", "--json").stdout)} <= {"interrupted"}


def test_a_second_ctrl_c_kills(launch: Launch) -> None:
    """It skips the wait for tasks that ignore TERM, as TensorFlow's do."""
    stubborn = "trap '' TERM; echo up; sleep 300 & wait; sleep 300"
    running = launch.start("up", launch.shell(stubborn, timeouts={"grace": 100}))
    read_until(running, "up", 2)
    running.send_signal(signal.SIGINT)
    assert running.stderr is not None
    assert "2 tasks, logs in" in running.stderr.readline()
    assert "press Ctrl-C again to kill" in running.stderr.readline()
    began = time.monotonic()
    running.send_signal(signal.SIGINT)
    running.communicate(timeout=PATIENCE)
    assert running.returncode == 130
    assert time.monotonic() - began < 90, "the grace of 100 s was waited for"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_other_signals_end_it_too(launch: Launch, number: signal.Signals, code: int) -> None:
    """128 + the signal's number."""
    running = launch.start("up", launch.shell(SLEEP))
    read_until(running, "up", 2)
    running.send_signal(number)
    running.communicate(timeout=PATIENCE)
    assert running.returncode == code


SAVING = """
[ "$TFLAUNCH_ATTEMPT" = 0 ] || exit 7
trap 'exit 0' TERM; sleep 1; echo up; read line < never"""


@pytest.mark.parametrize(("tells_agent", "code"), [(True, 7), (False, 143)])
def test_tasks_that_save_before_tflaunch_knows_of_the_end_are_not_done(
    launch: Launch, tells_agent: bool, code: int
) -> None:
    """As schedulers, service managers and a node's shutdown do it, the tasks first: agent or tflaunch come last."""
    os.mkfifo(launch.directory / "never")
    running = launch.start("up", launch.shell(SAVING, restart={"backoff": [0, 0]}))
    read_until(running, "up", 2)
    this = psutil.Process(running.pid)
    tasks = [process for process in this.children(recursive=True) if process.name() == "sh"]
    last = next(process for process in this.children() if is_agent(process)) if tells_agent else this
    for process in (*tasks, last):
        process.terminate()
    running.communicate(timeout=PATIENCE)
    assert running.returncode == code


def test_under_nohup_a_hangup_does_not_end_it(launch: Launch) -> None:
    """An ignored signal stays ignored."""
    fifo = launch.directory / "fifo"
    os.mkfifo(fifo)
    spec = launch.shell("echo up; read line < fifo", workers=1)
    command = ["nohup", str(TFLAUNCH), "up", str(spec)]
    running = subprocess.Popen(
        command, cwd=launch.directory, env=launch.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    launch.started.append(running)
    read_until(running, "up")
    running.send_signal(signal.SIGHUP)
    fifo.write_text("go\n")
    running.communicate(timeout=PATIENCE)
    assert running.returncode == 0


@pytest.mark.parametrize("victim", ["launcher", "agent"])
def test_kill_9_leaves_no_process(launch: Launch, victim: str) -> None:
    """Whether the launcher or the agent is killed, including tasks that ignore TERM."""
    script = "trap '' TERM; echo up; sleep 300 & wait"
    running = launch.start("up", launch.shell(script, workers=2, restart={"max": 0}))
    read_until(running, "up", 2)
    left = launch.survivors()
    guard = next(child for child in psutil.Process(running.pid).children())
    (guard.children()[0] if victim == "agent" else psutil.Process(running.pid)).kill()
    running.communicate(timeout=PATIENCE)
    assert running.returncode == (125 if victim == "agent" else -9)
    _, alive = psutil.wait_procs(left, timeout=PATIENCE)
    assert not alive


def test_a_busy_port_is_named_before_anything_starts(launch: Launch) -> None:
    """With the process that uses it; exit 3."""
    with socket.socket() as owner:
        owner.bind(("127.0.0.1", 0))
        owner.listen()
        port = owner.getsockname()[1]
        ended = launch.up(launch.spec(cluster={"worker": [f"localhost:{port}"]}, command=["touch", "started"]))
    assert ended.returncode == 3
    assert f"worker:0: port {port} is in use by pid {os.getpid()}" in ended.stderr
    assert 'or give the task another one in "cluster"' in ended.stderr
    assert not (launch.directory / "started").exists()


def test_a_killed_agent_is_replaced(launch: Launch) -> None:
    """Its tasks die with it; a new agent restarts them, within the budget."""
    script = "[ $TFLAUNCH_ATTEMPT = 1 ] && exit; echo up; exec sleep 300"
    running = launch.start("up", launch.shell(script, restart={"max": 1, "backoff": [0, 0]}))
    read_until(running, "up", 2)
    psutil.Process(running.pid).children()[0].children()[0].kill()
    _, err = running.communicate(timeout=PATIENCE)
    assert running.returncode == 0, err
    assert "host localhost was lost" in err


def test_64_tasks_lose_no_exit_and_no_descriptor(launch: Launch) -> None:
    """Every start and exit is in the journal; the 64th task sees as few descriptors as the first."""
    ended = launch.up(launch.shell("ls /proc/self/fd | wc -l", workers=64))
    assert ended.returncode == 0
    kinds = [record["kind"] for record in launch.journal()]
    assert kinds.count("task_started") == kinds.count("task_exited") == kinds.count("task_gone") == 64
    assert {line.split(" | ")[1] for line in ended.stdout.splitlines()} == {"4"}


def test_every_line_arrives_once_and_in_order(launch: Launch) -> None:
    """4 tasks, 200,000 lines of 100 characters each: in the logs and, never torn, on stdout."""
    program = (
        "import os\nname=os.environ['TFLAUNCH_TASK']\nfor n in range(200000): print(f'{name} {n} '.ljust(99, 'x'))"
    )
    spec = launch.spec(cluster={"worker": 4}, env={"PYTHONUNBUFFERED": ""}, command=["python3", "-c", program])
    ended = launch.up(spec)
    assert ended.returncode == 0
    wanted = {f"worker:{w}": [f"worker:{w} {n} ".ljust(99, "x") for n in range(200000)] for w in range(4)}
    shown: dict[str, list[str]] = {task: [] for task in wanted}
    for line in ended.stdout.splitlines():
        task, _, text = line.partition(" | ")
        shown[task].append(text)
    assert shown == wanted
    for task, lines in wanted.items():
        assert launch.log(task).splitlines() == lines


def test_a_log_directory_with_planted_files_is_refused(launch: Launch) -> None:
    """Before anything starts, and the targets of the links stay unchanged."""
    target, logs = launch.directory / "target", launch.directory / "logs"
    target.write_text("mine\n")
    logs.mkdir()
    (logs / "worker-1.log").symlink_to(target)
    ended = launch.up(launch.shell("touch started"), "--log-dir", logs)
    assert ended.returncode == 2
    (sentence,) = ended.stderr.splitlines()
    assert sentence.startswith(f"tflaunch: --log-dir: {logs}/worker-1.log is a symbolic link; remove it, or use a")
    assert (target.read_text(), (launch.directory / "started").exists()) == ("mine\n", False)
    assert not list(launch.home.glob("runs/*"))


def test_a_reader_that_goes_away_does_not_end_the_job(launch: Launch) -> None:
    """`tflaunch up … | head -1`: the logs are complete all the same."""
    running = launch.start(
        "up", launch.shell("i=0; while [ $i -lt 20000 ]; do echo line $i; i=$((i+1)); done", workers=1)
    )
    assert running.stdout is not None
    running.stdout.readline()
    running.stdout.close()
    assert running.stderr is not None
    running.stderr.read()
    assert running.wait(PATIENCE) == 0
    assert len(launch.log("worker:0").splitlines()) == 20000


def test_a_reader_that_stops_does_not_stop_the_job(launch: Launch) -> None:
    """Nothing reads our stdout: tasks run to completion, and Ctrl-C works."""
    running = launch.start(
        "up", launch.shell("head -c 3000000 /dev/zero | tr '\\0' '\\n'; : > wrote; exec sleep 300", workers=1)
    )
    while not (launch.directory / "wrote").exists():
        assert running.poll() is None
        time.sleep(0.01)
    running.send_signal(signal.SIGINT)
    running.communicate(timeout=PATIENCE)
    assert running.returncode == 130


def test_a_parameter_server_job_ends_with_its_chief(launch: Launch) -> None:
    """Worker and ps would never exit; the job ends when the chief does, and they end with it."""
    script = "[ $TFLAUNCH_TASK = chief:0 ] && exit 0; exec sleep 300"
    ended = launch.up(launch.shell(script, cluster={"chief": 1, "worker": 2, "ps": 1}))
    assert ended.returncode == 0


def test_a_sidecar_runs_beside_and_ends_with_the_job(launch: Launch) -> None:
    """It has no TF_CONFIG, and its failure is not the job's."""
    sidecars = {
        "board": {"command": ["sh", "-c", "echo config ${TF_CONFIG-none}; touch shown; exec sleep 300"]},
        "broken": {"command": ["no-such-program"]},
    }
    broken = f'grep -q \'"task_not_started".*"broken"\' {launch.home}/runs/*/events.jsonl'
    ended = launch.up(launch.shell(f"until [ -e shown ] && {broken}; do sleep 0.05; done", sidecars=sidecars))
    assert ended.returncode == 0
    assert "board    | config none" in ended.stdout
    assert "broken command not found: 'no-such-program'; the job goes on without it" in ended.stderr


def test_a_sidecar_that_fails_for_good_is_explained(launch: Launch) -> None:
    """What its last lines mean, once; the job may wait for it in vain."""
    sidecars = {"data": {"command": ["python", "-c", "import no_such_package"]}}
    wait = f'until grep -q \'"task_gone".*"data"\' {launch.home}/runs/*/events.jsonl; do sleep 0.1; done; sleep 0.2'
    ended = launch.up(launch.shell(wait, workers=1, sidecars=sidecars, restart={"max": 0}))
    assert ended.returncode == 0, ended.stderr
    assert "tflaunch: data exited with code 1; the job goes on without it\n" in ended.stderr
    assert ended.stderr.count("tflaunch: hint: no_such_package is not installed") == 1


def test_a_task_finds_its_environment(launch: Launch) -> None:
    """The documented variables, the user's proxy, none for gRPC, and a private directory of its own."""
    launch.env["http_proxy"] = "http://proxy.invalid:1"
    names = "$TFLAUNCH_TASK $TFLAUNCH_ATTEMPT $http_proxy [${grpc_proxy-none}] $PYTHONUNBUFFERED"
    script = f'echo {names}; [ -d "$TFLAUNCH_TASK_DIR" ] && echo $TFLAUNCH_RUN'
    ended = launch.up(launch.shell(script, workers=1))
    assert ended.stdout.splitlines()[0] == "worker:0 | worker:0 0 http://proxy.invalid:1 [] 1"
    assert ended.stdout.splitlines()[1] == f"worker:0 | {launch.run_directory().name}"


def test_without_a_proxy_no_variable_says_so_and_pwd_is_the_workdir(launch: Launch) -> None:
    """JAX warns of an empty grpc_proxy; Python's os.getenv("PWD") is what a shell would set."""
    for name in ("http_proxy", "https_proxy", "grpc_proxy"):
        launch.env.pop(name, None)
    (launch.directory / "below").mkdir()
    show = ["python3", "-c", "import os; print(os.environ['PWD'] == os.getcwd(), 'grpc_proxy' in os.environ)"]
    ways: list[dict[str, Any]] = [{}, {"preload": ["json"]}]
    for more in ways:
        ended = launch.up(launch.spec(cluster={"worker": 1}, command=show, workdir="below", **more))
        assert ended.stdout == "worker:0 | True False\n"


def test_a_signal_is_heard_whenever_it_comes(launch: Launch) -> None:
    """Even in the instant before the launcher sleeps: some tries of two signals in quick succession."""
    stubborn = "trap '' TERM; echo up; sleep 300 & wait; sleep 300"
    spec = launch.shell(stubborn, workers=1, timeouts={"grace": 100})
    for _ in range(20 if LONG else 5):
        running = launch.start("up", spec)
        read_until(running, "up")
        assert running.stderr is not None
        running.send_signal(signal.SIGINT)
        while "press Ctrl-C again to kill" not in running.stderr.readline():
            pass
        running.send_signal(signal.SIGINT)
        began = time.monotonic()
        running.communicate(timeout=PATIENCE)
        assert time.monotonic() - began < 90, "the grace of 100 s was waited for"


def test_options_of_up(launch: Launch) -> None:
    """--name, --set, --log-dir and a command after --."""
    spec = launch.shell("exit 3")
    ended = launch.up(spec, "--name", "mine", "--set", "cluster.worker=1", "--log-dir", "out", "--", "echo", "--hello")
    assert ended.returncode == 0
    assert launch.run_directory().name.startswith("mine-")
    assert (launch.directory / "out" / "worker-0.log").read_text() == "--hello\n"


def test_a_task_finds_what_was_chosen_for_it(launch: Launch) -> None:
    """Its share of the cores, what tflaunch has set, and why it has tf_keras or not: its host has checked."""
    script = (
        'echo "$TFLAUNCH_STRATEGY|$TFLAUNCH_SET|$TF_NUM_INTRAOP_THREADS|$TF_USE_LEGACY_KERAS|$TFLAUNCH_LEGACY_KERAS"'
    )
    site = launch.directory / "env" / "lib" / "python3.11" / "site-packages"
    (site / "tensorflow").mkdir(parents=True)
    (site / "tensorflow" / "__init__.py").touch()
    (site / "tensorflow-2.19.0.dist-info").mkdir()
    python = launch.directory / "env" / "bin" / "python"
    python.parent.mkdir()
    python.symlink_to(sys.executable)
    (launch.directory / "env" / "pyvenv.cfg").write_text("include-system-site-packages = false\n")
    ended = launch.up(launch.shell(script, env={"PATH": f"{python.parent}:{os.environ['PATH']}"}))
    assert ended.returncode == 0, ended.stderr
    share = max(1, len(os.sched_getaffinity(0)) // 2)
    chosen = "TF_GRPC_REUSE_PORT,TF_USE_LEGACY_KERAS,TF_FORCE_GPU_ALLOW_GROWTH,TF_NUM_INTRAOP_THREADS"
    why = "tf_keras is not installed beside TensorFlow 2.19"
    assert launch.log("worker:0") == f"multi_worker_mirrored|{chosen}|{share}|0|{why}\n"


def test_the_last_lines_are_those_of_this_run(launch: Launch) -> None:
    """A log directory may hold output of an earlier run; it stays there and is not shown again."""
    launch.up(launch.shell("echo earlier; exit 3", workers=1), "--log-dir", "out")
    ended = launch.up(launch.shell("echo now; exit 3", workers=1), "--log-dir", "out")
    assert "    now\n" in ended.stderr
    assert "earlier" not in ended.stderr
    assert (launch.directory / "out" / "worker-0.log").read_text() == "earlier\nnow\n"


def test_a_deadline_ends_the_job_with_124(launch: Launch) -> None:
    """And names the limit."""
    ended = launch.up(launch.shell(SLEEP, timeouts={"deadline": "0.3s"}))
    assert ended.returncode == 124
    assert "stopped: not finished within timeouts.deadline" in ended.stderr


def test_the_start_limit_names_who_never_listened(launch: Launch) -> None:
    """A program that starts no TensorFlow server keeps the others waiting indefinitely."""
    ended = launch.up(launch.shell(SLEEP, timeouts={"start": "0.3s"}))
    assert ended.returncode == 124
    assert "worker:0, worker:1" in ended.stderr


def test_folding_the_journal_gives_the_job(launch: Launch) -> None:
    """Replaying the recorded events through the same step gives the same state."""
    script = "[ $TFLAUNCH_ATTEMPT = 1 ] || kill -9 $$; [ $TFLAUNCH_TASK = worker:0 ] || exit 5"
    spec = launch.shell(script, restart={"max": 1, "backoff": [0, 0]})
    ended = launch.up(spec)
    loaded = load.load_spec(spec)
    made = planner.make_plan(loaded, PurePath(spec.parent), local_machine.describe_machine(["localhost"]))
    journal = launch.journal()
    job = step.begin_job(journal[0]["run"], made, journal[0]["now"])
    for record in journal:
        event = event_records.from_record(record)
        if event is not None and not isinstance(event, Annotation):
            job, _ = step.step(job, event, record["now"])
    assert job.phase is Phase.ENDED
    assert job.exit_code == ended.returncode == 5
    assert job.attempt == 1


def test_a_home_that_cannot_be_written_is_one_sentence(launch: Launch) -> None:
    """With the remedy."""
    (launch.directory / "home").write_text("a file")
    ended = launch.up(launch.spec(cluster={"worker": 1}, command=["true"]))
    assert ended.returncode == 125
    assert "set TFLAUNCH_HOME" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_no_output_is_coloured_for_a_file(launch: Launch, tmp_path: Path) -> None:
    """Escape sequences are for terminals."""
    ended = launch.up(launch.shell("echo plain"))
    assert "\033" not in ended.stdout + ended.stderr


def test_the_first_of_many_that_die_together_is_named_every_time(launch: Launch) -> None:
    """The victims die 5 to 50 ms after the culprit, in fifty runs."""
    spec = launch.spec(
        cluster={"worker": 4},
        command=["python3", "-c", failing_attempts.program(launch.directory, 4)],
        **failing_attempts.FIELDS,
    )
    ended = launch.up(spec)
    assert ended.returncode == 0, ended.stderr
    assert failing_attempts.named(launch.run_directory()) == failing_attempts.culprits(4)


def test_a_host_that_is_emptied_lets_its_tasks_save_for_free(launch: Launch) -> None:
    """TERM to the agent, as `systemctl stop` sends it: the tasks get TERM, and restart free of charge."""
    script = (
        'trap "echo saved; exit 42" TERM; echo up $TFLAUNCH_ATTEMPT;'
        " test $TFLAUNCH_ATTEMPT = 1 || { sleep 300 & wait; }"
    )
    fields: dict[str, Any] = {"timeouts": {"grace": 100}, "restart": {"max": 1, "backoff": [0, 0]}}
    running = launch.start("up", launch.shell(script, strategy="none", **fields))
    read_until(running, "up 0", 2)
    (guard,) = psutil.Process(running.pid).children()
    (agent,) = [process for process in guard.children() if is_agent(process)]
    agent.terminate()
    out, err = running.communicate(timeout=PATIENCE)
    assert running.returncode == 0, err
    assert out.count("saved") == 2
    assert out.count("up 1") == 2
    budget = replay.replay_job(launch.journal()).restarts.budget
    assert (len(budget.charged), len(budget.free)) == (0, 1)


@pytest.mark.parametrize("role", ["worker", "board"])
def test_silence_is_a_stall_only_where_it_trains(launch: Launch, role: str) -> None:
    """A hanging program prints its stacks and is restarted; a silent sidecar is left alone."""
    program = (
        "import os, time\n"
        "def hanging_here():\n    time.sleep(0 if int(os.environ['TFLAUNCH_ATTEMPT']) else 300)\n"
        "print('up')\nhanging_here()\n"
    )
    speaking = "import time\nfor i in range(30):\n    print(i)\n    time.sleep(0.1)\n"
    hangs = role == "worker"

    def check(stall: int) -> None:
        shutil.rmtree(launch.home, ignore_errors=True)
        spec = launch.spec(
            cluster={"worker": 2},
            strategy="none",
            command=["python3", "-c", program if hangs else speaking.replace("0.1", str(0.1 * stall))],
            sidecars={} if hangs else {"board": {"command": ["python3", "-c", program]}},
            timeouts={"stall": stall},
            restart={"max": 1, "backoff": [0, 0]},
        )
        ended = launch.up(spec)
        assert ended.returncode == 0, ended.stderr
        if hangs:
            assert f"tflaunch: no output or progress for {stall} s (timeouts.stall)" in ended.stderr
            assert "tflaunch: worker:0, worker:1 sleep (<string>, line 3), silent for " in ended.stderr
            for task in ("worker:0", "worker:1"):
                assert "in hanging_here" in launch.log(task)
                assert f"---- tflaunch: {task} attempt 1 ----" in launch.log(task)
        else:
            assert "timeouts.stall" not in ended.stderr

    check_with_limits(check)


def test_a_stall_without_budget_ends_with_124(launch: Launch) -> None:
    """And no process is left."""
    command = ["python3", "-c", "import time\ntime.sleep(300)"]

    def check(stall: int) -> None:
        about: dict[str, Any] = {
            "command": command,
            "strategy": "none",
            "timeouts": {"stall": stall},
            "restart": {"max": 0},
        }
        ended = launch.up(launch.spec(cluster={"worker": 1}, **about))
        assert ended.returncode == 124
        assert ended.stderr.count("worker:0 sleeps (<string>, line 2)") == 2, "at once, and in the summary"
        assert "not restarted: restart.max is 0" in ended.stderr

    check_with_limits(check)


FAILS_AT_THE_END = """import os, time
for step in range(5):
    with open(os.environ["TFLAUNCH_PROGRESS"], "w") as pipe:
        pipe.write('{"step": %d}\\n' % step)
    time.sleep(0.1)
raise ValueError("the last batch is empty")
"""


def test_a_job_that_fails_at_its_last_line_is_not_retrained_forever(launch: Launch) -> None:
    """The first restart is free, as it reached step 4; each failure has left the window by the next."""
    (launch.directory / "train.py").write_text(FAILS_AT_THE_END)
    rules = {"max": 3, "window": 0.1, "backoff": [0.2, 0.2]}
    command = ["sh", "-c", "echo started; exec python3 train.py"]
    ended = launch.up(launch.spec(cluster={"worker": 1}, strategy="none", command=command, restart=rules))
    assert ended.returncode == 1
    assert ended.stdout.count("started") == 3
    assert "not charged: step 4 is further than before" in ended.stderr
    assert (
        "not restarted: crash loop: the same failure 3 times without progress (ValueError at train.py:" in ended.stderr
    )


def test_a_job_that_makes_progress_goes_on_however_often_it_is_killed(launch: Launch) -> None:
    """Ten times within the window, with a budget of one restart that is not charged."""
    program = "echo Epoch $TFLAUNCH_ATTEMPT/10; [ $TFLAUNCH_ATTEMPT = 10 ] || kill -9 $$"
    ended = launch.up(launch.shell(program, workers=1, restart={"max": 1, "backoff": [0.01, 0.01]}))
    assert ended.returncode == 0, ended.stderr
    assert "not charged: epoch 9 is further than before" in ended.stderr


RAISES_TOGETHER = """import os, pathlib, sys, time, traceback
def wait_for_all(*error):
    traceback.print_exception(*error)
    pathlib.Path("raised-" + os.environ["TFLAUNCH_TASK"]).touch()
    while len(list(pathlib.Path().glob("raised-*"))) < 3:
        time.sleep(0.01)
sys.excepthook = wait_for_all
raise KeyError("label")
"""


def test_what_every_task_raises_alike_is_not_retried(launch: Launch) -> None:
    """A restart would fail too."""
    (launch.directory / "train.py").write_text(RAISES_TOGETHER)
    ended = launch.up(launch.spec(cluster={"worker": 3}, strategy="none", command=["python3", "train.py"]))
    assert ended.returncode == 1
    assert "not restarted: every task failed alike, so a restart would fail too: KeyError at train.py:8" in ended.stderr


def test_a_crash_loop_ends_early(launch: Launch) -> None:
    """Whatever the budget."""
    ended = launch.up(launch.shell("kill -11 $$", restart={"max": 50, "backoff": [0, 0]}, strategy="none"))
    assert ended.returncode == 139
    assert "not restarted: crash loop: the same failure 3 times without progress (SIGSEGV)" in ended.stderr
    assert {record["attempt"] for record in launch.journal() if record["kind"] == "start_task"} == {0, 1, 2}


def test_a_word_of_progress_is_as_good_as_output(launch: Launch) -> None:
    """A program that prints nothing but writes into its pipe is not stalled; each attempt has a new pipe."""
    script = (
        'for i in $(seq 8); do echo "{\\"step\\": $i}" > "$TFLAUNCH_PROGRESS"; sleep PACE; done;'
        " test $TFLAUNCH_ATTEMPT = 1 || kill -9 $$"
    )

    def check(stall: int) -> None:
        about = {"strategy": "none", "timeouts": {"stall": stall}, "restart": {"backoff": [0, 0]}}
        ended = launch.up(launch.shell(script.replace("PACE", str(stall / 4)), workers=1, **about))
        assert ended.returncode == 0, ended.stderr
        assert "timeouts.stall" not in ended.stderr

    check_with_limits(check)


@pytest.mark.parametrize("is_quick", [False, True], ids=["in time", "at the end"])
def test_a_run_directory_that_is_removed_costs_logs_and_not_the_job(launch: Launch, is_quick: bool) -> None:
    """It is said once, while the job goes on, and the exit code stays the job's."""
    go = launch.directory / "go"
    running = launch.start(
        "up",
        launch.shell(f"echo up; until test -e {go}; do sleep 0.05; done; exit 7", strategy="none", restart={"max": 0}),
    )
    assert running.stderr is not None
    read_until(running, "up")
    directory = launch.run_directory()
    while directory.exists():
        shutil.rmtree(directory, ignore_errors=True)  # the run may be writing into it
    said = ""
    while not is_quick and "was removed" not in said:
        said += running.stderr.readline()
    go.touch()
    said += running.communicate(timeout=PATIENCE)[1]
    assert running.returncode == 7, said
    assert said.count(f"{directory} was removed: the job goes on") == 1
