"""`tflaunch up`, as its users see it: output, exit codes, and nothing left behind."""

import json
import os
import re
import shutil
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from support.launch import LONG, PATIENCE, Launch, read_errors_until, read_until, wait_for_end
from support.processes import is_agent
from support.specs import TFLAUNCH
from support.waiting import check_with_limits, wait_until
from tflaunch_worker.features.debug import in_tasks

PRINT_CONFIG = ["python3", "-c", "import os; print(os.environ['TF_CONFIG'])"]
SLEEP = "echo up; exec sleep 9999"


def test_the_smallest_local_spec_runs(launch: Launch) -> None:
    """Both tasks print their TF_CONFIG, prefixed, on stdout; logs and journal are complete, and private."""
    ended = launch.succeed("up", launch.spec(cluster={"worker": 2}, command=PRINT_CONFIG))
    lines = dict(line.split(" | ", 1) for line in ended.stdout.splitlines())
    assert set(lines) == {"worker:0", "worker:1"}
    config = json.loads(lines["worker:1"])
    assert config["task"] == {"type": "worker", "index": 1}
    assert len(set(config["cluster"]["worker"])) == 2
    assert launch.log("worker:1") == lines["worker:1"] + "\n"
    begin, end = ended.stderr.splitlines()
    assert begin == f"tflaunch: run {launch.run_directory().name}: 2 tasks, logs in {launch.run_directory()}/logs"
    assert re.fullmatch(r"tflaunch: done: 2 tasks in (\d+\.\d s|\d+ ms)", end)
    assert "\033" not in ended.stdout + ended.stderr
    assert launch.run_directory().stat().st_mode & 0o077 == 0
    journal = launch.journal()
    assert journal[0]["kind"] == "plan"
    assert journal[0]["plan"] == json.loads((launch.run_directory() / "plan.json").read_text())
    assert [record["seq"] for record in journal] == list(range(len(journal)))


def test_a_program_in_the_background_is_no_success(launch: Launch) -> None:
    """It says what still ran and what helps, is not retried, and is no success for any command."""
    command = ["sh", "-c", "nohup sleep 9999 > /dev/null 2>&1 &"]
    ended = launch.up(launch.spec(cluster={"worker": 2}, strategy="none", command=command), code=1)
    about = r"worker:\d ended with 0 while its process \d+ \(sleep 9999\) still ran in the background"
    assert re.search(about, ended.stderr)
    assert "hint: let the command stay in the foreground" in ended.stderr
    assert "restart" not in ended.stderr
    kinds = [(record["kind"], record.get("attempt")) for record in launch.journal()]
    assert {attempt for kind, attempt in kinds if kind == "start_task"} == {0}


def test_a_spec_is_read_from_a_pipe_and_a_long_line_is_shown_whole(launch: Launch) -> None:
    """`up <(jq …)` and `up /dev/stdin`; a record of JSON is not torn on the way."""
    spec = launch.shell("head -c 1000000 /dev/zero | tr '\\0' x; echo", workers=1)
    for words in (f"{TFLAUNCH} up -q <(cat {spec})", f"{TFLAUNCH} up -q /dev/stdin < {spec}"):
        ended = launch.paste(words)
        assert (ended.returncode, ended.stderr) == (0, "")
        assert ended.stdout == f"worker:0 | {'x' * 1_000_000}\n"


def test_more_tasks_than_files_may_be_open(launch: Launch) -> None:
    """A low soft limit is raised for tflaunch itself, not for tasks; the last has as few descriptors as the first."""
    spec = launch.shell("ulimit -Sn; ls /proc/self/fd | wc -l", workers=80)
    launch.prefix = ["sh", "-c", 'ulimit -Sn 64; exec "$@"', "sh"]
    ended = launch.succeed("up", spec)
    assert sorted(line.split(" | ")[1] for line in ended.stdout.splitlines()) == ["4"] * 80 + ["64"] * 80
    kinds = [record["kind"] for record in launch.journal()]
    assert kinds.count("task_started") == kinds.count("task_exited") == kinds.count("task_gone") == 80


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
    spec, before = launch.shell("sleep 9999"), launch.env
    launch.env = {**before, "PYTHONPATH": str(launch.directory), "PRESS_CTRL_C_AT": module, **environment}
    interrupted = launch.up(spec, *options)
    launch.env = before
    assert interrupted.returncode == code, interrupted.stderr
    assert "Traceback" not in interrupted.stderr


INT, TERM, USR1 = signal.SIGINT, signal.SIGTERM, signal.SIGUSR1


@pytest.mark.parametrize(
    ("number", "module", "options", "states"),
    [
        (INT, "tflaunch.cli.main", [], []),
        (INT, "tflaunch.runtime.wiring", ["-d"], []),
        (INT, "tflaunch.features.records.run_record", [], ["interrupted"]),
        (USR1, "tflaunch.runtime.launch", [], []),
        (TERM, "tflaunch.features.records.run_record", ["-d"], ["interrupted"]),
    ],
)
def test_a_signal_at_the_start(launch: Launch, number: int, module: str, options: list[str], states: list[str]) -> None:
    """No traceback, no directory of a run without a journal, and no run that goes on."""
    interrupt_at(launch, module, *options, code=128 + number, SIGNAL=str(int(number)))
    assert [run["state"] for run in json.loads(launch.run("ls", "--json").stdout)] == states
    assert len(list(launch.home.glob("runs/*"))) == len(states)


def test_a_ctrl_c_that_python_ignores_is_repeated(launch: Launch) -> None:
    interrupt_at(launch, "tflaunch.runtime.wiring", IN_CALLBACK="1")
    assert {run["state"] for run in json.loads(launch.run("ls", "--json").stdout)} <= {"interrupted"}


SAVING = """
[ "$TFLAUNCH_ATTEMPT" = 0 ] || exit 7
trap 'exit 0' TERM; sleep 1; echo up; read line < never"""


@pytest.mark.parametrize(("tells_agent", "code"), [(True, 7), (False, 143)])
def test_tasks_that_save_before_the_end_is_known_are_not_done(launch: Launch, tells_agent: bool, code: int) -> None:
    """As schedulers, service managers and a node's shutdown do it, the tasks first: agent or tflaunch come last."""
    os.mkfifo(launch.directory / "never")
    running = launch.start("up", launch.shell(SAVING, restart={"backoff": [0, 0]}), until="up", count=2)
    this = psutil.Process(running.pid)
    tasks = [process for process in this.children(recursive=True) if process.name() == "sh"]
    last = next(process for process in this.children() if is_agent(process)) if tells_agent else this
    for process in (*tasks, last):
        process.terminate()
    wait_for_end(running, code)


def test_under_nohup_a_hangup_does_not_end_it(launch: Launch) -> None:
    fifo = launch.directory / "fifo"
    os.mkfifo(fifo)
    spec = launch.shell("echo up; read line < fifo", workers=1)
    launch.prefix = ["nohup"]
    running = launch.start("up", spec, until="up")
    running.send_signal(signal.SIGHUP)
    fifo.write_text("go\n")
    wait_for_end(running)


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


def test_every_line_arrives_once_and_in_order(launch: Launch) -> None:
    """4 tasks, 50,000 lines of 100 characters each: in the logs and, never torn, on stdout."""
    program = "import os\nname=os.environ['TFLAUNCH_TASK']\nfor n in range(50000): print(f'{name} {n} '.ljust(99, 'x'))"
    spec = launch.spec(cluster={"worker": 4}, env={"PYTHONUNBUFFERED": ""}, command=["python3", "-c", program])
    ended = launch.succeed("up", spec)
    wanted = {f"worker:{w}": [f"worker:{w} {n} ".ljust(99, "x") for n in range(50000)] for w in range(4)}
    shown: dict[str, list[str]] = {task: [] for task in wanted}
    for line in ended.stdout.splitlines():
        task, _, text = line.partition(" | ")
        shown[task].append(text)
    assert shown == wanted
    for task, lines in wanted.items():
        assert launch.log(task).splitlines() == lines


def test_a_sidecar_runs_beside_and_ends_with_the_job(launch: Launch) -> None:
    """It has no TF_CONFIG, and its failure is explained, once, and not the job's."""
    sidecars = {
        "board": {"command": ["sh", "-c", "echo config ${TF_CONFIG-none}; exec sleep 9999"]},
        "broken": {"command": ["no-such-program"]},
        "data": {"command": ["python", "-c", "import no_such_package"]},
        "leaves": {"command": ["sh", "-c", "sleep 9999 &"]},
    }
    running = launch.start("up", launch.shell("until [ -e go ]; do sleep 0.05; done", workers=1, sidecars=sidecars))
    hint = "hint: no_such_package is not installed"
    wanted = {
        "broken command not found: 'no-such-program'; the job goes on without it",
        "data exited with code 1; the job goes on without it",
        r"leaves ended with 0 while its process \d+ \(sleep 9999\) still ran .*; the job goes on",
        hint,
    }
    said = ""
    while not all(re.search(words, said) for words in wanted):
        said += (line := running.stderr.readline())
        assert line, said
    (launch.directory / "go").touch()
    out, err = wait_for_end(running)
    assert "board    | config none" in out
    assert (said + err).count(hint) == 1


def test_a_task_finds_its_environment(launch: Launch) -> None:
    """The documented variables, the user's proxy, none for gRPC, its host's, and a private directory of its own.

    A directory of tflaunch could hide modules such as `inspect`; the one for `breakpoint()` has one module.
    """
    launch.env["http_proxy"] = "http://proxy.invalid:1"
    names = "$TFLAUNCH_TASK $TFLAUNCH_ATTEMPT $http_proxy [${grpc_proxy-none}] $PYTHONUNBUFFERED $A $B"
    script = f'echo {names}; [ -d "$TFLAUNCH_TASK_DIR" ] && echo $TFLAUNCH_RUN $PYTHONPATH'
    hosts = {"*": {"env": {"A": "all", "B": "all"}}, "localhost": {"env": {"B": "own"}}}
    ended = launch.up(launch.shell(script, workers=1, strategy="none", env={"PYTHONPATH": "/mine"}, hosts=hosts))
    (modules,) = in_tasks.__path__
    assert ended.stdout.splitlines() == [
        "worker:0 | worker:0 0 http://proxy.invalid:1 [] 1 all own",
        f"worker:0 | {launch.run_directory().name} /mine:{modules}",
    ]
    assert {path.stem for path in Path(modules).glob("*.py")} == {"__init__", "tflaunch_breakpoint"}


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


def test_a_second_ctrl_c_kills_whenever_it_comes(launch: Launch) -> None:
    """It skips the grace for tasks that ignore TERM, even in the instant before the launcher sleeps: some tries."""
    stubborn = "trap '' TERM; echo up; sleep 9999 & wait; sleep 9999"
    spec = launch.shell(stubborn, workers=1, timeouts={"grace": 100 * PATIENCE})
    for _ in range(20 if LONG else 3):
        running = launch.start("up", spec, until="up")
        running.send_signal(signal.SIGINT)
        read_errors_until(running, "press Ctrl-C again to kill")
        running.send_signal(signal.SIGINT)
        wait_for_end(running, 130)


def test_a_third_ctrl_c_ends_tflaunch_itself(launch: Launch) -> None:
    """Where an agent obeys no order; it ends its tasks when it goes on."""
    limits = {"grace": 100 * PATIENCE, "heartbeat": PATIENCE}
    running = launch.start("up", launch.shell(SLEEP, workers=1, timeouts=limits), until="up")
    agents = [process for process in psutil.Process(running.pid).children(recursive=True) if is_agent(process)]
    for agent in agents:
        agent.suspend()
    for number in range(1, 4):
        running.send_signal(signal.SIGINT)
        if number < 3:  # signals of one kind that are pending at once are one
            wait_until(lambda: len(launch.records("interrupted")) == number)  # noqa: B023
    wait_for_end(running, 125)
    for agent in agents:
        agent.resume()
    wait_until(lambda: not launch.survivors())


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
    launch.succeed("up", launch.shell(script, env={"PATH": f"{python.parent}:{os.environ['PATH']}"}))
    share = max(1, len(os.sched_getaffinity(0)) // 2)
    chosen = "TF_GRPC_REUSE_PORT,TF_USE_LEGACY_KERAS,TF_FORCE_GPU_ALLOW_GROWTH,TF_NUM_INTRAOP_THREADS"
    why = "tf_keras is not installed beside TensorFlow 2.19"
    assert launch.log("worker:0") == f"multi_worker_mirrored|{chosen}|{share}|0|{why}\n"


HANGS = """
import os, time
def hanging_here():
    time.sleep(9999)
print("up")
hanging_here()
"""
REPORTS = """
for i in $(seq 8); do echo "{\\"step\\": $i}" > "$TFLAUNCH_PROGRESS"; sleep PACE; done
test $TFLAUNCH_ATTEMPT = 1 || kill -9 $$
"""


def test_a_hanging_program_shows_its_stacks_and_starts_again(launch: Launch) -> None:
    """Until the budget is spent, which gives 124; a silent sidecar is left alone."""
    command = ["python3", "-c", HANGS]

    def check(stall: int) -> None:
        shutil.rmtree(launch.home, ignore_errors=True)
        limits = {"timeouts": {"stall": stall}, "restart": {"max": 1, "backoff": [0, 0]}}
        sidecars = {"board": {"command": ["sleep", "9999"]}}
        about: dict[str, Any] = {"strategy": "none", "sidecars": sidecars, **limits}
        ended = launch.up(launch.spec(cluster={"worker": 2}, command=command, **about), code=124)
        assert re.search(r"tflaunch: no output or progress for \d+ \w+ \(timeouts.stall\)", ended.stderr)
        assert ended.stderr.count("tflaunch: worker:0, worker:1 sleep (<string>, line 4), silent for ") >= 2
        assert "not restarted: " in ended.stderr
        for task in ("worker:0", "worker:1"):
            assert all("in hanging_here" in part for part in launch.log(task).split("----")[0::2]), launch.log(task)
            assert f"---- tflaunch: {task} attempt 1 ----" in launch.log(task)

    check_with_limits(check)


def test_progress_is_as_good_as_output(launch: Launch) -> None:
    """A program that prints nothing but writes into its pipe is not stalled; each attempt has a new pipe."""

    def check(stall: int) -> None:
        about = {"strategy": "none", "timeouts": {"stall": stall}, "restart": {"backoff": [0, 0]}}
        ended = launch.succeed("up", launch.shell(REPORTS.replace("PACE", str(stall / 4)), workers=1, **about))
        assert "timeouts.stall" not in ended.stderr

    check_with_limits(check)


def test_a_run_directory_that_is_removed_costs_logs_and_not_the_job(launch: Launch) -> None:
    """Its exit code stays its own."""
    go = launch.directory / "go"
    running = launch.start(
        "up",
        launch.shell(f"echo up; until test -e {go}; do sleep 0.05; done; exit 7", strategy="none", restart={"max": 0}),
    )
    read_until(running, "up")
    directory = launch.run_directory()
    while directory.exists():
        shutil.rmtree(directory, ignore_errors=True)  # the run may be writing into it
    go.touch()
    said = running.communicate(timeout=PATIENCE)[1]
    assert running.returncode == 7, said


def test_placeholders_are_filled_in_at_every_attempt(launch: Launch) -> None:
    """With the ports of TF_CONFIG, which differ each time."""
    script = """
        echo "{attempt} {task.name} $RANK {cluster.worker} {run}"
        echo "$TF_CONFIG" | grep -q "$(echo '{cluster.worker}' | sed 's/,/","/g')" || exit 9
        [ {attempt} = 1 ]
    """
    spec = launch.shell(script, strategy="none", env={"RANK": "{task.index}"}, restart={"backoff": ["10ms", "1s"]})
    launch.succeed("up", spec)
    run = launch.run_directory().name
    lines = [line.split() for line in (launch.log("worker:0") + launch.log("worker:1")).splitlines()]
    assert {(line[0], line[1], line[2], line[4]) for line in lines if line[0] == "1"} == {
        ("1", "worker:0", "0", run),
        ("1", "worker:1", "1", run),
    }
    assert len({line[3] for line in lines if line[0] == "1"}) == 1
    assert {line[3] for line in lines if line[0] == "0"}.isdisjoint(line[3] for line in lines if line[0] == "1")


def test_sidecars_alone_are_a_job_until_the_required_ones_have_ended(launch: Launch) -> None:
    sidecars = {
        "a": {"command": ["echo", "done"], "required": True},
        "b": {"command": ["sh", "-c", "exit 0"], "required": True},
        "c": {"command": ["sleep", "1000"]},
    }
    done = launch.up(launch.spec(sidecars=sidecars))
    assert (done.returncode, done.stdout) == (0, "a | done\n")
    assert "done: 3 tasks" in done.stderr
